# Included by the Snakefile after figures.smk: the report is no phase of DVC, since it holds times.


rule report:
    input:
        figures=FIGURE_FILES.values(),
        verdicts=VERDICTS,
        curves=CURVES,
        config=[os.path.relpath(path) for path in workflow.configfiles],
        code=source_files("report"),
        template="src/rankcollapse/report/report.html.j2",
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
