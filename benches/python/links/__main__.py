"""A tensor handed to another process, by Estafette and by other means: `python benches/python/links PART [--rounds N]`.

A *hand-over* goes from one process to another and back: the first process has changed the tensor, the second has it as a NumPy array and
reads its first element, and the first one may change it again. Everything that can be made beforehand is. No process is bound to a
core. The means take turns; a figure of a round is the median of its hand-overs. *Awake*: one hand-over behind the
other. *Idle*: with a pause before each. What the second process reads is checked each time, or at the end of a round.

`local` has what two processes do by themselves, `workloads` the same means with several tensors or readers, `ray` actors of Ray,
`dask` workers of Dask, `tickets` the way of a ticket, `nixl` a tensor that goes to another machine. A line is a figure for each
round, or what is left out and why, between tabulators; `cargo xtask links` makes a table of them.
"""

import argparse

from clusters import with_dask, with_ray
from figures import left_out
from hand_overs import local, tickets
from other_machine import with_nixl
from workloads import workloads

PARTS = {"local": local, "workloads": workloads, "tickets": tickets, "ray": with_ray, "dask": with_dask, "nixl": with_nixl}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    try:
        PARTS[options.part](options.rounds)
    except ImportError as error:
        left_out(options.part, error)


if __name__ == "__main__":
    main()
