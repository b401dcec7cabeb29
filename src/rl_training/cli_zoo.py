"""`rl-training import-zoo`: hyperparameters of RL Zoo as a config of ours."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import-zoo")
@click.argument("file")
@click.argument("env")
@click.option("--algo", help="The algorithm, if it is not the name of the file.")
@click.option("--output", help="Write the config to this YAML file; it is printed without it.")
def import_zoo(file: str, env: str, algo: str | None, output: str | None) -> None:
    """Convert the entry of ENV in FILE, a file of hyperparameters of RL Zoo such as ppo.yml.

    What could not be converted is listed, one line each. Defaults of Stable-Baselines3 that differ from ours are
    written out, so that the config means the same.
    """
    from omegaconf import OmegaConf

    from rl_training.data.disk import write_atomically
    from rl_training.runtime.sb3.zoo import convert
    from rl_training.types import UserError

    settings, missing = convert(file, env, algo)
    content = OmegaConf.to_yaml(OmegaConf.create(settings))
    if output is None:
        click.echo(content, nl=False)
    else:
        target = Path(output)
        if target.exists():
            raise UserError(f"--output={output!r}: exists; choose another name")
        try:
            write_atomically(target, content)
        except OSError as error:
            raise UserError(f"cannot write {output!r}: {error.strerror or error}") from error
        click.echo(f"{output}: train it with rl-training train {output}")
    for line in missing:
        click.echo(f"not converted: {line}", err=True)
