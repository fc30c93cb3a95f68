"""The page of the engine: Gradio tabs and the HTTP endpoints. Knows nothing of traces; app.py adds those.

ask.py          what was asked, checked; several labels become several requests
runs.py         Run: those requests in the engine, followed at 12 Hz, cancelled as one
results.py      outcome -> JSON and plain sentences; pure
markup.py       outcome -> HTML and SVG; pure, everything escaped
files.py        overlay PNG and result JSON to download
image_input.py  the image widget: hands over the file as it was uploaded
playground.py   the tab: components and events
endpoints.py    /query, /caption, /point, /detect
about.py        model, device, limits, versions
facts.py        the words on what runs where
lab_controls.py the Compare tab's workload, knobs and presets, and how they are read
comparisons.py  one workload at two settings, round by round, one comparison at a time
lab.py          the Compare tab: components and events
lab_endpoint.py /compare
theme.py        colours, fonts and style sheets, all from this machine
"""
