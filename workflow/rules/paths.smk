include: "common.smk"


rule paths_and_bounds:
    default_target: True
    input:
        [TABLES[name] for name in JOINED],
        CHAINED,
        [TABLES[name] for name in ("chained", "rates", "orders", "asymptote")],
        TABLES["components"],
    message:
        "Paths and bounds of {PROFILE} are there"


rule study:
    input:
        manifest=lambda w: manifest(w.folder),
        tokenizer=lambda w: manifest(jobs.tokenizer_of_folder(CONFIG, w.folder)),
        text=jobs.text_path(CONFIG, CONFIG.published_text),
        code=lambda w: source_files(
            *jobs.STUDY_MODULES[w.study], *architecture_modules(w.folder)
        ),
    output:
        directory(f"{DATA}/paths/{{study}}/{{folder}}"),
    log:
        f"{LOGS}/study/{{study}}.{{folder}}.log",
    wildcard_constraints:
        study="|".join(jobs.STUDY_TABLES),
        folder="|".join(FOLDERS),
    conda:
        "../../environment.yml"
    resources:
        mem_mb=3000,
    params:
        command=lambda w: jobs.STUDY_COMMANDS[w.study],
        folder=subpath(input.manifest, parent=True),
        tokenizer=subpath(input.tokenizer, parent=True),
        flags=lambda w: jobs.study_flags(CONFIG, w.study),
        event=f"{LOGS}/study/{{study}}.{{folder}}",
    message:
        "Studying {wildcards.folder}: {wildcards.study}"
    shell:
        "rankcollapse {params.command} {params.folder} --tokenizer {params.tokenizer}"
        " --text {input.text:q} {params.flags} --output {output}"
        " --event {params.event} 2> {log}"


rule pure_san:
    input:
        code=source_files("bound_studies", "path_tables"),
    output:
        directory(PURE_SAN),
    log:
        f"{LOGS}/study/bounds.pure-san.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/study/bounds.pure-san",
    message:
        "Evaluating the bounds on small networks of attention alone"
    shell:
        "rankcollapse pure-san --output {output} --event {params.event} 2> {log}"


rule chain:
    input:
        manifest=lambda w: manifest(w.folder),
        tokenizer=lambda w: manifest(jobs.tokenizer_of_folder(CONFIG, w.folder)),
        text=jobs.text_path(CONFIG, CONFIG.published_text),
        code=lambda w: source_files(
            *jobs.STUDY_MODULES["chained"], *architecture_modules(w.folder)
        ),
    output:
        f"{DATA}/paths/chained/{{folder}}.parquet",
    log:
        f"{LOGS}/chain/{{folder}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=3000,
    params:
        folder=subpath(input.manifest, parent=True),
        tokenizer=subpath(input.tokenizer, parent=True),
        flags=jobs.study_flags(CONFIG, "chained"),
        event=f"{LOGS}/chain/{{folder}}",
    message:
        "Chaining the attention of {wildcards.folder}"
    shell:
        "rankcollapse chain {params.folder} --tokenizer {params.tokenizer}"
        " --text {input.text:q} {params.flags} --output {output}"
        " --event {params.event} 2> {log}"


rule quartiles:
    input:
        pairs=CHAINED,
        code=source_files("chained_tables"),
    output:
        TABLES["chained"],
    log:
        f"{LOGS}/quartiles/all.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/quartiles/all",
    message:
        "Summarising the chained attention of {PROFILE}"
    shell:
        "rankcollapse quartiles {input.pairs} --output {output}"
        " --event {params.event} 2> {log}"


rule join_studies:
    input:
        folders=lambda w: studied(JOINED[w.table]),
        code=source_files("task_tables"),
    output:
        f"{DATA}/paths/{{table}}.csv",
    log:
        f"{LOGS}/join/{{table}}.log",
    wildcard_constraints:
        table="|".join(JOINED),
    conda:
        "../../environment.yml"
    params:
        tables=lambda w, input: [f"{folder}/{w.table}.csv" for folder in input.folders],
        event=f"{LOGS}/join/{{table}}",
    message:
        "Joining the tables of {wildcards.table}"
    shell:
        "rankcollapse join {params.tables} --output {output} --event {params.event} 2> {log}"


rule rates:
    input:
        tables=RESIDUALS,
        code=source_files("rates", "path_tables"),
    output:
        TABLES["rates"],
        TABLES["orders"],
    log:
        f"{LOGS}/rates/all.log",
    conda:
        "../../environment.yml"
    params:
        folder=subpath(output[0], parent=True),
        event=f"{LOGS}/rates/all",
    message:
        "Measuring how fast the curves of {PROFILE} collapse"
    shell:
        "rankcollapse rates {input.tables} --output {params.folder}"
        " --event {params.event} 2> {log}"


rule asymptote:
    input:
        code=source_files("asymptote"),
    output:
        TABLES["asymptote"],
    log:
        f"{LOGS}/asymptote/all.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/asymptote/all",
    message:
        "Following a small network with hundreds of digits"
    shell:
        "rankcollapse asymptote --output {output} --event {params.event} 2> {log}"


rule components:
    input:
        code=source_files("components", "component_networks", "path_tables"),
    output:
        TABLES["components"],
    log:
        f"{LOGS}/components/all.log",
    conda:
        "../../environment.yml"
    params:
        seeds=f"0-{CONFIG.paths.component_seeds - 1}",
        event=f"{LOGS}/components/all",
    message:
        "Putting pieces into small networks and taking them out"
    shell:
        "rankcollapse components --seeds {params.seeds} --output {output}"
        " --event {params.event} 2> {log}"
