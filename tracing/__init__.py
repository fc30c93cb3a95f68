"""The tracing workbench: records what a pipelined engine did, measures it, draws it.

Knows its producer only by the protocols in `protocol`; imports nothing of photon.

    protocol    the records that a producer emits
    recorder    Recorder: bounded, thread-safe; snapshot() -> Trace
    trace       Trace: immutable, sorted records of one time window
    intervals   union, intersect, subtract, total; pure
    requests    what marks and rows say about each request; demand
    bubbles     when the device idled although it was wanted, why, and what to do about it
    leaks       where the host waited for the device and must not
    predict     what two steps in flight would gain
    latency     metrics of requests: TTFT, ITL, throughput
    values      their arithmetic: None where there is nothing to divide
    metrics     one pure function per metric, its formula in the docstring
    inspect     one step as the engine saw it, row by row; the newest steps in a table
    lanes       which row of the timeline a span lies on, and its colour
    report      compare(a, b): every metric, step times and tokens of two traces
    timeline    timeline(trace) -> plotly Figure; histograms(a, b) likewise
    chrome      to_chrome, from_chrome: Trace Event JSON that Perfetto opens
    files       load, save: the one door for trace files
    exports     CSV of spans, document of metrics; page: all of it as one HTML file
    ui/         the live timeline on the page, and its routes

Times are integer nanoseconds on the producer's clock; milliseconds only in timeline and ui,
microseconds only in chrome. All intervals are half open.
"""
