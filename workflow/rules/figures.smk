include: "common.smk"


rule figures:
    default_target: True
    input:
        FIGURE_FILES.values(),
        VERDICTS,
        CLAIMS,
        CHAINED_VERDICTS,
        COMPONENT_CLAIMS,
    message:
        "Figures and verdicts of {PROFILE} are there"


for figure, tables in jobs.FIGURE_TABLES.items():

    rule:
        name:
            f"draw_{figure}"
        input:
            **{table: TABLES[table] for table in tables},
            code=source_files("figures", "figures.output", f"figures.{figure}"),
        output:
            FIGURE_FILES[figure],
        log:
            f"{LOGS}/figure/{figure}.log",
        conda:
            "../../environment.yml"
        params:
            figure=figure,
            stem=subpath(output[0], strip_suffix=".pdf"),
            tables=[f"--table {table}={TABLES[table]}" for table in tables],
            text=CONFIG.published_text,
            event=f"{LOGS}/figure/{figure}",
        message:
            "Drawing {params.figure}"
        shell:
            "rankcollapse figure {params.figure} {params.tables} --text {params.text}"
            " --seed 0 --output {params.stem} --event {params.event} 2> {log}"


rule verdict:
    input:
        curves=TABLES["curves"],
        published=TABLES["published"],
        code=source_files("verdicts"),
    output:
        VERDICTS,
    log:
        f"{LOGS}/verdict/figure2.log",
    conda:
        "../../environment.yml"
    params:
        folder=subpath(output[0], parent=True),
        text=CONFIG.published_text,
        event=f"{LOGS}/verdict/figure2",
    message:
        "Judging the published points one by one"
    shell:
        "rankcollapse verdict {input.curves} --published {input.published}"
        " --text {params.text} --output {params.folder} --event {params.event} 2> {log}"


rule claims:
    input:
        scores=SCORES,
        circle=TABLES["circle"],
        code=source_files("claims"),
    output:
        CLAIMS,
    log:
        f"{LOGS}/claims/claims.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/claims/claims",
    message:
        "Judging the claims on trained networks"
    shell:
        "rankcollapse claims {input.scores} --circle {input.circle}"
        " --output {output} --event {params.event} 2> {log}"


rule judge:
    input:
        chained=CHAINED,
        published=TABLES["published_chained"],
        code=source_files("chained_verdicts"),
    output:
        CHAINED_VERDICTS,
    log:
        f"{LOGS}/judge/chained_attention.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/judge/chained_attention",
    message:
        "Judging the published quartiles of chained attention"
    shell:
        "rankcollapse judge {input.chained} --published {input.published}"
        " --output {output} --event {params.event} 2> {log}"


rule causes:
    input:
        components=TABLES["components"],
        relative=TABLES["relative"],
        code=source_files("path_claims"),
    output:
        COMPONENT_CLAIMS,
    log:
        f"{LOGS}/causes/components.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/causes/components",
    message:
        "Judging what stops or slows the collapse"
    shell:
        "rankcollapse causes {input.components} --relative {input.relative}"
        " --output {output} --event {params.event} 2> {log}"
