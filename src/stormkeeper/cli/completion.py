"""``storm completion``: what a shell needs to complete commands and options."""

import click

from stormkeeper.cli.options import examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        "source <(storm completion bash)",
        "storm completion bash > ~/.local/share/bash-completion/completions/storm",
        'storm completion zsh > "${fpath[1]}/_storm"',
        "storm completion fish > ~/.config/fish/completions/storm.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes commands and options.

    The first example does it for the running shell, the others for every one that is started
    later; bash must be 4.4 or newer.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    name = root.info_name or "storm"
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{name}_COMPLETE".replace("-", "_").upper()
    click.echo(kind(root.command, {}, name, variable).source())
