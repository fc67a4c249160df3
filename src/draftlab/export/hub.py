"""Uploading an export to the Hugging Face hub; by default only said, not done.

    upload(Path("outputs/demo/export/deepspec"), "me/dspark-smollm2", dry_run=True)

The token is the hub client's own (``hf auth login``, or HF_TOKEN) and is never read out or printed.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import HFValidationError, validate_repo_id


def check_name(name: str) -> None:
    """Refuse what is no name of a repository.

    Raises:
        ValueError: expected ``organisation/name``.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"hub={name!r} is no name of a repository ({error}); expected hub=organisation/name") from None
    if name.count("/") != 1:
        raise ValueError(f"hub={name!r} must name whose repository it is, as in hub=organisation/name")


def upload(folder: Path, name: str, dry_run: bool = True, private: bool = False) -> None:
    """Upload ``folder`` to repository ``name``, which is made if it is not there; with ``dry_run`` say what would be sent.

    Raises:
        ValueError: no token, or the hub refused.
    """
    check_name(name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"  {path.relative_to(folder)}  {path.stat().st_size:,} bytes")
    if dry_run:
        print(f"dry run: {len(files)} files would go to https://huggingface.co/{name}; hub_dry_run=false sends them")
        return
    if get_token() is None:
        raise ValueError(
            f"hub={name} needs a token with write access: run `hf auth login`, or set HF_TOKEN. Everything is written to {folder}, "
            "and the same command sends it"
        )
    try:
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Drafter exported by DraftLab")
    except HfHubHTTPError as error:
        raise ValueError(
            f"the hub refused hub={name}: {str(error).splitlines()[0]}. The export stays in {folder}"
        ) from None
    print(f"uploaded: https://huggingface.co/{name}")
