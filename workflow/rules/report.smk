# Included by the Snakefile after figures.smk: the report is no phase of DVC, since it holds times.


REPORT_TEMPLATES = [
    f"src/rankcollapse/report/{name}.html.j2"
    for name in ("report", "trained", "paths", "style", "provenance")
]


rule report:
    input:
        figures=FIGURE_FILES.values(),
        verdicts=VERDICTS,
        claims=[CLAIMS, CHAINED_VERDICTS, COMPONENT_CLAIMS],
        tables=TABLES.values(),
        config=[os.path.relpath(path) for path in workflow.configfiles],
        code=source_files("report"),
        templates=REPORT_TEMPLATES,
    output:
        str(CONFIG.report),
    log:
        f"{LOGS}/report/report.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/report/report",
    message:
        "Writing {output}"
    shell:
        "rankcollapse report {input.config} --output {output} --event {params.event} 2> {log}"
