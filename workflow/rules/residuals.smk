include: "common.smk"


rule residuals:
    default_target: True
    input:
        RESIDUALS,
        TABLES["curves"],
    message:
        "Residual tables of {PROFILE} are there"


rule evaluate:
    input:
        manifest=lambda w: manifest(RUNS[w.run].checkpoint),
        tokenizer=lambda w: manifest(jobs.tokenizer_of(CONFIG, RUNS[w.run])),
        text=lambda w: jobs.text_path(CONFIG, RUNS[w.run].text),
        code=lambda w: source_files(
            "evaluate",
            f"architectures.{FOLDERS[RUNS[w.run].checkpoint][0].model_type}",
        ),
    output:
        temp(directory(f"{DATA}/hidden_states/{{run}}")),
    log:
        f"{LOGS}/evaluate/{{run}}.log",
    conda:
        "../../environment.yml"
    resources:
        gpu=0 if CONFIG.device == "cpu" else 1,
        mem_mb=3000,
    params:
        folder=subpath(input.manifest, parent=True),
        tokenizer=subpath(input.tokenizer, parent=True),
        flags=lambda w: jobs.evaluate_flags(CONFIG, RUNS[w.run]),
        event=f"{LOGS}/evaluate/{{run}}",
    message:
        "Running the ablations of {wildcards.run}"
    shell:
        "rankcollapse evaluate {params.folder} --tokenizer {params.tokenizer}"
        " --text {input.text:q} {params.flags} --output {output}"
        " --event {params.event} 2> {log}"


rule residual:
    input:
        states=f"{DATA}/hidden_states/{{run}}",
        code=source_files("residuals"),
    output:
        f"{DATA}/residuals/{{run}}.parquet",
    log:
        f"{LOGS}/residual/{{run}}.log",
    # Ahead of further evaluations: their hidden states are large and go when they are measured.
    priority: 10
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1500,
    params:
        spectral=CONFIG.spectral_sequences,
        event=f"{LOGS}/residual/{{run}}",
    message:
        "Measuring {wildcards.run}"
    shell:
        "rankcollapse residuals {input.states} --spectral-sequences {params.spectral}"
        " --output {output} --event {params.event} 2> {log}"


rule curves:
    input:
        tables=RESIDUALS,
        code=source_files("tables"),
    output:
        TABLES["curves"],
    log:
        f"{LOGS}/curves/all.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/curves/all",
    message:
        "Averaging the tables of {PROFILE} over their sequences"
    shell:
        "rankcollapse curves {input.tables} --output {output} --event {params.event} 2> {log}"
