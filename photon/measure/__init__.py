"""What the engine costs and gains, and whether its records are true: the parts of `photon.selfcheck` and
`photon.bench`.

command.py        the command line they share with `photon.whatif` and `photon.calibrate`
rounds.py         one full batch from submit to end, and what its records say
trace_truth.py    a trace against what must be so and against other clocks
overhead.py       what observing costs: throughput with an observer and without one, in one run
asked_again.py    what the prefix cache saves: the first question about a picture and the second
host_cost.py      the host's own cost of a tick, on a device that does nothing
full_check.py     a card at Moondream 2's size, against the CPU and its own limits
dense_forward.py  a whole request in one pass: what the engine's tokens are held against
bandwidth.py      how fast a device's memory is, and what a decode step must read at the least
machine.py        what a figure was measured on, and how busy it was
"""
