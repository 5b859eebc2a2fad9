include: "common.smk"


rule figures:
    default_target: True
    input:
        FIGURE_FILES.values(),
        VERDICTS,
        CLAIMS,
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


rule figure3:
    input:
        circle=TASK_TABLES["circle"],
        trajectories=TASK_TABLES["trajectories"],
        code=source_files("figures", "figures.output", "figures.figure3"),
    output:
        FIGURE_FILES["figure3"],
    log:
        f"{LOGS}/figure/figure3.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        event=f"{LOGS}/figure/figure3",
    message:
        "Drawing figure 3: two points on a circle"
    shell:
        "rankcollapse figure figure3 --circle {input.circle} --trajectories {input.trajectories} --output {params.stem}"
        " --event {params.event} 2> {log}"


rule figure4:
    input:
        accuracy=TASK_TABLES["accuracy"],
        code=source_files("figures", "figures.output", "figures.figure4"),
    output:
        FIGURE_FILES["figure4"],
    log:
        f"{LOGS}/figure/figure4.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        event=f"{LOGS}/figure/figure4",
    message:
        "Drawing figure 4: accuracy against path length"
    shell:
        "rankcollapse figure figure4 --accuracy {input.accuracy} --output {params.stem}"
        " --event {params.event} 2> {log}"


rule width_depth:
    input:
        lengths=TASK_TABLES["lengths"],
        code=source_files("figures", "figures.output", "figures.width_depth"),
    output:
        FIGURE_FILES["width_depth"],
    log:
        f"{LOGS}/figure/width_depth.log",
    conda:
        "../../environment.yml"
    params:
        stem=subpath(output[0], strip_suffix=".pdf"),
        event=f"{LOGS}/figure/width_depth",
    message:
        "Drawing which path lengths trained networks use"
    shell:
        "rankcollapse figure width_depth --lengths {input.lengths} --output {params.stem}"
        " --event {params.event} 2> {log}"


rule claims:
    input:
        scores=SCORES,
        circle=TASK_TABLES["circle"],
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
