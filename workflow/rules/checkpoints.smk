include: "common.smk"


rule checkpoints:
    default_target: True
    input:
        [manifest(folder) for folder in FOLDERS],
        [jobs.text_path(CONFIG, name) for name in CONFIG.texts],
    message:
        "Checkpoints of {PROFILE} are there"


rule weights:
    input:
        lambda w: jobs.checkpoint_inputs(CONFIG, w.folder),
        code=lambda w: source_files(*jobs.SOURCE_MODULES[FOLDERS[w.folder][0].source]),
    output:
        f"{DATA}/checkpoints/{{folder}}/manifest.json",
    log:
        f"{LOGS}/weights/{{folder}}.log",
    conda:
        "../../environment.yml"
    params:
        command=lambda w: jobs.checkpoint_command(CONFIG, w.folder),
        folder=subpath(output[0], parent=True),
        event=f"{LOGS}/weights/{{folder}}",
    message:
        "Making the checkpoint {wildcards.folder}"
    shell:
        "rankcollapse checkpoint {params.command} --output {params.folder}"
        " --event {params.event} 2> {log}"


rule text:
    input:
        code=source_files(*jobs.TEXT_MODULES),
    output:
        f"{DATA}/checkpoints/text-{{text}}/documents.txt",
    log:
        f"{LOGS}/text/{{text}}.log",
    conda:
        "../../environment.yml"
    params:
        flags=lambda w: jobs.text_flags(CONFIG, w.text),
        folder=subpath(output[0], parent=True),
        event=f"{LOGS}/text/{{text}}",
    message:
        "Fetching the text {wildcards.text}"
    shell:
        "rankcollapse checkpoint text {params.flags} --output {params.folder}"
        " --event {params.event} 2> {log}"
