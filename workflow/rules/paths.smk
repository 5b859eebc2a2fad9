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


for study, tables in jobs.STUDY_TABLES.items():

    rule:
        name:
            f"study_{study}"
        input:
            manifest=lambda w: manifest(w.folder),
            tokenizer=lambda w: manifest(jobs.tokenizer_of_folder(CONFIG, w.folder)),
            text=jobs.text_path(CONFIG, CONFIG.published_text),
            sentences=(
                jobs.text_path(CONFIG, CONFIG.memorization.text)
                if study == "decomposition"
                else []
            ),
            code=lambda w, study=study: source_files(
                *jobs.STUDY_MODULES[study], *architecture_modules(w.folder)
            ),
        output:
            [f"{DATA}/paths/{study}/{{folder}}/{table}.csv" for table in tables],
        log:
            f"{LOGS}/study/{study}.{{folder}}.log",
        wildcard_constraints:
            folder="|".join(STUDIES[study]),
        conda:
            "../../environment.yml"
        resources:
            mem_mb=3000,
        params:
            command=jobs.STUDY_COMMANDS[study],
            folder=subpath(input.manifest, parent=True),
            tokenizer=subpath(input.tokenizer, parent=True),
            flags=jobs.study_flags(CONFIG, study),
            output=subpath(output[0], parent=True),
            event=f"{LOGS}/study/{study}.{{folder}}",
        message:
            "Studying {wildcards.folder}: {params.command}"
        shell:
            "rankcollapse {params.command} {params.folder} --tokenizer {params.tokenizer}"
            " --text {input.text:q} {params.flags} --output {params.output}"
            " --event {params.event} 2> {log}"


rule pure_san:
    input:
        code=source_files("bound_studies", "path_tables"),
    output:
        [f"{PURE_SAN}/{table}.csv" for table in jobs.STUDY_TABLES["bounds"]],
    log:
        f"{LOGS}/study/bounds.pure-san.log",
    conda:
        "../../environment.yml"
    params:
        output=subpath(output[0], parent=True),
        event=f"{LOGS}/study/bounds.pure-san",
    message:
        "Evaluating the bounds on small networks of attention alone"
    shell:
        "rankcollapse pure-san --output {params.output} --event {params.event} 2> {log}"


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
        tables=lambda w: studied(JOINED[w.table], w.table),
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
        event=f"{LOGS}/join/{{table}}",
    message:
        "Joining the tables of {wildcards.table}"
    shell:
        "rankcollapse join {input.tables} --output {output} --event {params.event} 2> {log}"


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
