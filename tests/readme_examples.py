"""How each command of the README is executed by test_readme.py: small, on a tiny target, and what it must leave behind."""

from __future__ import annotations

from commands import Example

ANSWERS = "count=12 responses.max_new_tokens=24 responses.batch_size=4"
STEPS = (
    "trainer.settings.max_steps=2 trainer.settings.val_check_interval=1 trainer.settings.log_every_n_steps=1 "
    "data.val_samples=2 data.batch_size=2 data.max_length=512 block.num_anchors=4 logger=csv "
)
SIZE = "drafter.num_layers=1 drafter.draft_vocab_size=null"
DECODE = "limit=1 max_new_tokens=6 speed.prompts=1 speed.max_new_tokens=4"
AFTER = "evaluation.limit=1 evaluation.max_new_tokens=6 evaluation.speed.prompts=0"
SERVE = "serve.turns=1 serve.seconds=1 serve.warm_up=0.2 serve.max_new_tokens=6 limit=2"
TINY = "target=custom target.path={target} target.mask_token_id=3"
TINY_CHAIN = f"{TINY} data=laptop data.path={{answers}} trainer=laptop {STEPS} drafter.draft_vocab_size=null"
TINY_TRAIN = f"{TINY} data=laptop data.path={{answers}} trainer=laptop block=laptop {STEPS} {SIZE}"


RANKS = "trainer.settings.accelerator=cpu trainer.settings.devices=2 trainer.settings.accumulate_grad_batches=1"
TINY_CACHE = f"{TINY} data=laptop data.path={{answers}} data.val_samples=2"

EXAMPLES = {
    "make demo": Example(
        f"trainer.settings.max_steps=20 {AFTER} hydra.run.dir={{folder}}/demo", True, "demo/report.html"
    ),
    "python -m draftlab doctor": Example(apart=True, prints="packages"),
    "make test": Example("tests/test_sampling.py", slow=True, prints="passed"),
    "python src/train.py target=qwen3_14b drafter=dspark head=markov plan=true": Example(prints="trainable"),
    "python src/train.py target=qwen3_4b plan=true": Example(prints="30,720"),
    "python src/prepare.py stage=responses target=custom target.path=Qwen/Qwen3-0.6B data=laptop data.path=outputs/answers": (
        Example(f"{TINY} {ANSWERS}", leaves="outputs/answers/manifest.json")
    ),
    "python src/train.py target=custom target.path=Qwen/Qwen3-0.6B data=laptop data.path=outputs/answers "
    "trainer=laptop block=laptop run_name=mine": Example(TINY_TRAIN, leaves="outputs/mine/metrics.csv"),
    "python src/evaluate.py run=outputs/mine": Example(f"run=outputs/demo {DECODE}", leaves="outputs/demo/report.html"),
    # The paper's targets need their weights: the same command, on the tiny target.
    "python src/train.py drafter=dspark head=markov target=qwen3_14b": Example(
        f"{TINY_TRAIN} run_name=big", leaves="outputs/big/metrics.csv"
    ),
    "python src/train.py": Example(
        f"{STEPS} hydra.run.dir={{folder}}/default", slow=True, leaves="default/metrics.csv"
    ),
    "python src/train.py head=gated loss.terms.ce.weight=0.5 block.block_size=5 run_name=gated": Example(
        TINY_TRAIN, leaves="outputs/gated/metrics.csv"
    ),
    "python src/train.py --multirun head=markov,gated,rnn,none run_name=heads": Example(
        TINY_TRAIN, slow=True, leaves="outputs/heads/*/metrics.csv", count=4
    ),
    "python src/train.py drafter=eagle3 run_name=eagle3": Example(
        f"{TINY_CHAIN} trainer.warm_start.layers=false", leaves="outputs/eagle3/metrics.csv"
    ),
    "python src/train.py drafter=mtp block.block_size=3 run_name=mtp3": Example(
        TINY_CHAIN, leaves="outputs/mtp3/metrics.csv"
    ),
    "python src/train.py loss=lk run_name=lk": Example(TINY_TRAIN, leaves="outputs/lk/metrics.csv"),
    "python src/train.py experiment=demo_compare": Example(
        f"{TINY_TRAIN} {AFTER}", slow=True, leaves="outputs/demo_compare/report.html"
    ),
    "python src/train.py experiment=compare_smollm2": Example(
        f"{TINY_CHAIN} {AFTER} drafter.num_layers=1 trainer.warm_start.layers=false",
        slow=True,
        leaves="outputs/compare_smollm2/report.html",
    ),
    "python src/train.py experiment=table1 target=qwen3_4b drafter=dspark plan=true": Example(prints="38 TB"),
    "python src/sweep.py sweeps/gamma.yaml --dry-run": Example(prints="block.block_size=16"),
    "python src/sweep.py sweeps/depth.yaml --workers 2": Example(
        f"{TINY} data=laptop data.path={{answers}} {STEPS} drafter.draft_vocab_size=null trainer.warm_start.layers=false "
        f"{AFTER} --count 2",
        slow=True,
        leaves="outputs/sweeps/depth/*/evaluation.json",
        count=2,
    ),
    "python src/prepare.py data=laptop count=1344 responses.batch_size=96 target.dtype=bfloat16 sampling.temperature=0.5 "
    "sampling.top_p=1.0": Example(
        f"{TINY} {ANSWERS} target.dtype=float32 data.path=outputs/laptop_answers",
        leaves="outputs/laptop_answers/manifest.json",
    ),
    "python src/train.py experiment=laptop": Example(
        f"{TINY_TRAIN} {AFTER}", slow=True, leaves="outputs/laptop/report.html"
    ),
    "python src/evaluate.py run=outputs/demo temperatures=[0,0.7,1] top_p=0.95": Example(
        DECODE, leaves="outputs/demo/rounds.parquet"
    ),
    "python src/evaluate.py run=outputs/demo prompts_dir=my_benchmarks limit=100": Example(
        "max_new_tokens=6 speed.prompts=0", leaves="outputs/demo/evaluation.json"
    ),
    "python src/report.py runs=[outputs/demo]": Example(leaves="outputs/demo/figures/accepted_length.png"),
    "python src/report.py runs=[outputs/dspark,outputs/dflash] out=outputs/compare": Example(
        leaves="outputs/compare/report.html"
    ),
    "python src/prepare.py data=hub data.prompts.path=my_prompts.jsonl data.path=outputs/hub_answers "
    "decontaminate.prompts_dir=my_benchmarks": Example(
        f"{TINY} {ANSWERS}", leaves="outputs/hub_answers/manifest.json", prints="1 of 5"
    ),
    "python src/calibrate.py run=outputs/demo drift=[0.7,0.3]": Example(
        "limit=8 skip=1 max_new_tokens=40 drift=[0.7] drift_limit=4",
        leaves="outputs/demo/calibration.html",
        prints="rounds of the fit",
    ),
    "python src/evaluate.py run=outputs/demo schedule=threshold schedule.value=0.6": Example(
        DECODE, leaves="outputs/demo/report.html"
    ),
    "python src/schedule.py profile run=outputs/demo": Example(
        "profile.tokens=[1,2,4] profile.rows=[1,2] profile.contexts=[8] profile.main_context=8 profile.repeats=1",
        leaves="outputs/demo/*sps.json",
        count=2,
    ),
    "python src/schedule.py serve run=outputs/demo schedule=early_stop concurrency=[1,2,4]": Example(
        f"{SERVE} concurrency=[1,2]", leaves="outputs/demo/serve/summary.csv"
    ),
    "python src/schedule.py serve experiment=pareto run=outputs/demo mtp=outputs/mtp": Example(
        f"{SERVE} mtp=null concurrency=[1] cells.mtp1=null cells.mtp3=null",
        leaves="outputs/demo/pareto/summary.csv",
    ),
    "python src/schedule.py serve experiment=load run=outputs/demo mtp=outputs/mtp": Example(
        f"{SERVE} mtp=null concurrency=[1] cells.mtp1=null", leaves="outputs/demo/load/summary.csv"
    ),
    "python src/schedule.py simulate": Example(
        "simulation.loads=[1,16] simulation.traffic.requests=30 simulation.traffic.rounds=2 simulation.traffic.mean_tokens=20",
        slow=True,
        leaves="outputs/simulated-load/report.html",
    ),
    "python src/schedule.py simulate experiment=bursts": Example(
        "simulation.traffic.requests=100 simulation.traffic.mean_tokens=20 simulation.study.burstiness=[1,50] "
        "simulation.study.lags=[1,4] simulation.study.seeds=[0]",
        slow=True,
        leaves="outputs/simulated-bursts/report.html",
    ),
    "python src/train.py drafter=dspark_exits run_name=exits": Example(
        f"{TINY_TRAIN} drafter.num_layers=2 trainer.warm_start.layers=false", leaves="outputs/exits/metrics.csv"
    ),
    "python src/evaluate.py run=outputs/exits exit.survival=0.3": Example(DECODE, leaves="outputs/exits/report.html"),
    "python benchmarks/exits.py run=outputs/exits": Example(
        "prompts=2 group=2 batch_size=2 max_new_tokens=4 survival=[0.5] accepted=[]", prints="lost"
    ),
    "python src/export.py run=outputs/demo licence=apache-2.0": Example(
        leaves="outputs/demo/export/deepspec/model.safetensors"
    ),
    "python src/export.py run=outputs/demo format=speculators dtype=bfloat16": Example(
        leaves="outputs/demo/export/speculators/config.json"
    ),
    "python src/export.py run=outputs/demo licence=apache-2.0 hub=organisation/name": Example(
        prints="organisation/name"
    ),
    "python src/adopt.py checkpoint=outputs/demo/export/deepspec run=outputs/adopted target=smollm2_135m": Example(
        TINY, leaves="outputs/adopted/checkpoints/*.ckpt"
    ),
    "python src/adopt.py checkpoint=outputs/demo/export/deepspec run=outputs/before target=custom target.path=my_model "
    "target.mask_token_id=4": Example(TINY, leaves="outputs/before/checkpoints/*.ckpt"),
    "python src/evaluate.py run=outputs/before": Example(DECODE, leaves="outputs/before/report.html"),
    "python src/prepare.py target=custom target.path=my_model target.mask_token_id=4 data=laptop data.path=outputs/my_answers": (
        Example(f"{TINY} {ANSWERS}", leaves="outputs/my_answers/manifest.json")
    ),
    "python src/train.py init_from=outputs/before target=custom target.path=my_model target.mask_token_id=4 data=laptop "
    "data.path=outputs/my_answers trainer=laptop run_name=after": Example(
        f"{TINY} {STEPS}", leaves="outputs/after/metrics.csv"
    ),
    "python src/evaluate.py run=outputs/after": Example(DECODE, leaves="outputs/after/report.html"),
    **{
        f"python src/train.py trainer={name} target={target} data=open_perfectblend": Example(
            f"{TINY_TRAIN} trainer={name} {RANKS} run_name={name}",
            slow=True,
            apart=True,
            leaves=f"outputs/{name}/checkpoints/best-*.ckpt",
        )
        for name, target in (("ddp", "qwen3_4b"), ("fsdp", "qwen3_14b"))
    },
    "python src/train.py data.packing=2048 run_name=packed": Example(TINY_TRAIN, leaves="outputs/packed/metrics.csv"),
    "python src/prepare.py stage=features data=demo data.features=cache data.codec=int8": Example(
        f"{TINY_CACHE} predict.accelerator=cpu data.max_length=512", prints="bytes a token with data.codec=int8"
    ),
    "python src/train.py data=demo data.features=cache data.codec=int8 run_name=cached": Example(
        TINY_TRAIN, leaves="outputs/cached/metrics.csv"
    ),
    "python benchmarks/cache.py": Example(
        "target=custom target_path={target} data=laptop data_path={answers} samples=8 rank=24 'codecs=[int8,lowrank]'",
        slow=True,
        prints="ratio_to_bf16",
    ),
    "python benchmarks/decode.py run=outputs/demo": Example("prompts=2 max_new_tokens=4 batch=2", prints="over_batch1"),
    "python benchmarks/products.py": Example(
        "rows=[2] shapes=[[300,256]] megabytes=1 repeats=1", prints="300x256_rows2"
    ),
    "python benchmarks/step.py": Example(
        "tokens=[90] anchors=[2] layers=1 steps=1 repeats=1",
        slow=True,
        prints="laptop_speedup",
    ),
    "python benchmarks/precision.py": Example(
        "batch=1 tokens=90 steps=1 repeats=1 'overrides=[experiment=demo,trainer.num_anchors=2]'",
        slow=True,
        prints="float32",
    ),
    "python benchmarks/packing.py": Example(
        "batch=2 shortest=60 longest=90 prompt=7 steps=1 'overrides=[experiment=demo,trainer.num_anchors=2]'",
        slow=True,
        prints="packing_gain",
    ),
    "python benchmarks/scheduler.py": Example("requests=8 gamma=4 repeats=5", prints="ms_8x4"),
    "python benchmarks/loss.py": Example(
        "vocabularies=[300] hidden=[16] anchors=[8] growth=false repeats=1", slow=True, prints="time_ratio"
    ),
    "python benchmarks/simulator.py": Example("requests=40 users=4", prints="early_stop"),
    "python benchmarks/round.py": Example("batches=[1] context=8 repeats=1", slow=True, prints="markov_share_batch1"),
}
