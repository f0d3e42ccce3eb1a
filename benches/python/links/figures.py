"""Common measures of all parts: sizes, rounds, and the lines with their figures."""

import collections
import contextlib
import statistics
import time

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "64 MB": 1 << 26}
# In this time a process that waits has gone to sleep.
PAUSE_S = 0.001
# Approximate time of the hand-overs of a round, and their number.
ROUND_S = 0.1
TRIPS_MIN, TRIPS_MAX = 3, 300
# Sent to the second process to ask for its total.
TOTAL = -1


def print_line(*fields):
    print("\t".join(str(field) for field in fields), flush=True)


def figure(row, unit, figures):
    print_line("figure", row, unit, " ".join(f"{it:.4g}" for it in figures))


def left_out(what, why):
    print_line("left out", what, str(why).splitlines()[0] if str(why) else type(why).__name__)


def hand_overs(means, sizes, states, rounds):
    """Prints a figure of each round for each of the means, and closes them."""
    figures, failed, value = collections.defaultdict(list), {}, 0
    for number in range(rounds + 1):
        for its in means:
            for size in sizes:
                for state in states:
                    key = its.NAME, size, state
                    if its in failed:
                        continue
                    try:
                        median, value = one_round(its, SIZES[size], state == "idle", value)
                    except Exception as error:
                        failed[its] = error
                        # At once: its process may poll a core.
                        with contextlib.suppress(Exception):
                            its.close()
                        continue
                    # The first is to warm up.
                    if number > 0:
                        figures[key].append(median * 1e6)
    for (name, size, state), its in figures.items():
        figure(f"{name}; {size}; {state}", "us", its)
    for its, error in failed.items():
        left_out(its.NAME, error)
    for its in means:
        if its not in failed:
            its.close()


def one_round(means, size, is_idle, value):
    times, total, end = [], 0, time.perf_counter() + ROUND_S
    while len(times) < TRIPS_MIN or len(times) < TRIPS_MAX and time.perf_counter() < end:
        value += 1
        total += value
        if is_idle:
            time.sleep(PAUSE_S)
        times.append(means.trip(size, value))
    means.check(total)
    return statistics.median(times), value
