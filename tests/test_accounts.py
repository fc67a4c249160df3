"""Logins are found where their owners keep them."""

from draftlab.accounts import logged_in


def test_a_key_in_the_environment_or_in_netrc_counts_as_logged_in(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not logged_in("api.wandb.ai")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert logged_in("api.wandb.ai") and not logged_in("wandb.example.org")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login\n")
    assert not logged_in("api.wandb.ai")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert logged_in("api.wandb.ai")
