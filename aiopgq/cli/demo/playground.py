"""The shop of the demo for your own experiments on a kept database.

export AIOPGQ_DSN=embedded:FOLDER
python -m aiopgq run -A aiopgq.cli.demo.playground
"""

from aiopgq import App
from aiopgq.cli.demo.shop import shop

__all__ = ["jobs"]

jobs: App[None] = App()
jobs.include(shop)
