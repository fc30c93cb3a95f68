"""The page of the engine: Gradio tabs and the HTTP endpoints. Knows nothing of traces; app.py adds those.

ask.py          what was asked, checked; several labels become several requests
runs.py         Run: those requests in the engine, followed at 12 Hz, cancelled as one
results.py      outcome -> JSON and plain sentences; pure
markup.py       outcome -> HTML and SVG; pure, everything escaped
exports.py      results as JSON, CSV, COCO, YOLO, VOC; pure
files.py        those as files to download, and the picture with its marks
image_input.py  the image widget: hands over the file as it was uploaded
references.py   points and boxes that a question is about: text, clicks, markers
stage.py        the picture before a run, and the events of its references
playground.py   the tab: components and events
batch_run.py    one task on many files, a bounded number at a time
kept.py         results on disk, for a batch that goes on where it was
batch.py        the Batch tab: events; its components are in batch_layout.py
events.py       how events are registered, and how failures are said
endpoints.py    /query, /caption, /point, /detect
about.py        model, device, limits, versions
facts.py        the words on what runs where
lab_controls.py the Compare tab's workload, knobs and presets, and how they are read
comparisons.py  one workload at two settings, round by round, one comparison at a time
lab.py          the Compare tab: components and events
lab_endpoint.py /compare
theme.py        colours, fonts and style sheets, all from this machine
"""
