include: "common.smk"


rule figures:
    default_target: True
    input:
        FIGURE_FILES.values(),
        VERDICTS,
    message:
        "Figures and verdicts of {PROFILE} are there"


rule figure1:
    input:
        code=source_files("figures", "figures.output", "figures.figure1"),
    output:
        FIGURE_FILES["figure1"],
    log:
        f"{LOGS}/figure/figure1.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        event=f"{LOGS}/figure/figure1",
    message:
        "Drawing figure 1: the paths of a small self-attention network"
    shell:
        "rankcollapse figure figure1 --seed 0 --output {params.stem}"
        " --event {params.event} 2> {log}"


rule figure2:
    input:
        curves=CURVES,
        published=PUBLISHED,
        code=source_files("figures", "figures.output", "figures.figure2"),
    output:
        FIGURE_FILES["figure2"],
    log:
        f"{LOGS}/figure/figure2.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        text=CONFIG.published_text,
        event=f"{LOGS}/figure/figure2",
    message:
        "Drawing figure 2: residual against layer"
    shell:
        "rankcollapse figure figure2 --curves {input.curves} --published {input.published}"
        " --text {params.text} --output {params.stem} --event {params.event} 2> {log}"


rule figure5:
    input:
        code=source_files("figures", "figures.output", "figures.figure5"),
    output:
        FIGURE_FILES["figure5"],
    log:
        f"{LOGS}/figure/figure5.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        event=f"{LOGS}/figure/figure5",
    message:
        "Drawing figure 5: how many paths have which length"
    shell:
        "rankcollapse figure figure5 --output {params.stem}"
        " --event {params.event} 2> {log}"


rule readings:
    input:
        curves=CURVES,
        code=source_files("figures", "figures.output", "figures.readings"),
    output:
        FIGURE_FILES["readings"],
    log:
        f"{LOGS}/figure/readings.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        text=CONFIG.published_text,
        event=f"{LOGS}/figure/readings",
    message:
        "Drawing the two readings, and the rates in float64"
    shell:
        "rankcollapse figure readings --curves {input.curves} --text {params.text} --output {params.stem}"
        " --event {params.event} 2> {log}"


rule texts:
    input:
        curves=CURVES,
        code=source_files("figures", "figures.output", "figures.texts"),
    output:
        FIGURE_FILES["texts"],
    log:
        f"{LOGS}/figure/texts.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        text=CONFIG.published_text,
        event=f"{LOGS}/figure/texts",
    message:
        "Drawing how far the text moves the curves"
    shell:
        "rankcollapse figure texts --curves {input.curves} --text {params.text} --output {params.stem}"
        " --event {params.event} 2> {log}"


rule verdict:
    input:
        curves=CURVES,
        published=PUBLISHED,
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
