include: "common.smk"


rule tasks:
    default_target: True
    input:
        [f"{DATA}/tasks/trained/{name}/model.safetensors" for name in CONFIG.trainings],
        SCORES,
        [TABLES[name] for name in TASK_TABLES],
    message:
        "Trained experiments of {PROFILE} are there"


rule train:
    input:
        text=lambda w: task_text(w.training),
        tokenizer=lambda w: task_tokenizer(w.training),
        code=source_files("trained"),
    output:
        f"{DATA}/tasks/trained/{{training}}/experiment.json",
        f"{DATA}/tasks/trained/{{training}}/model.safetensors",
        f"{DATA}/tasks/trained/{{training}}/history.csv",
    log:
        f"{LOGS}/train/{{training}}.log",
    # The longest jobs: started first, they leave the short ones to the end.
    priority: 20
    conda:
        "../../environment.yml"
    params:
        folder=subpath(output[0], parent=True),
        flags=lambda w: jobs.train_flags(CONFIG, w.training),
        texts=lambda w: task_flags(w.training),
        event=f"{LOGS}/train/{{training}}",
    message:
        "Training {wildcards.training}"
    shell:
        "rankcollapse train {params.flags} {params.texts} --output {params.folder}"
        " --event {params.event} 2> {log}"


rule paths:
    input:
        f"{DATA}/tasks/trained/{{training}}/model.safetensors",
        trained=f"{DATA}/tasks/trained/{{training}}/experiment.json",
        text=lambda w: task_text(w.training),
        tokenizer=lambda w: task_tokenizer(w.training),
        code=source_files("controls", "trained"),
    output:
        scores=f"{DATA}/tasks/scores/{{training}}.csv",
        lengths=f"{DATA}/tasks/lengths/{{training}}.csv",
    log:
        f"{LOGS}/paths/{{training}}.log",
    conda:
        "../../environment.yml"
    params:
        folder=subpath(input.trained, parent=True),
        texts=lambda w: task_flags(w.training),
        event=f"{LOGS}/paths/{{training}}",
    message:
        "Following the paths through {wildcards.training}"
    shell:
        "rankcollapse paths {params.folder} {params.texts} --output {output.scores}"
        " --lengths {output.lengths} --event {params.event} 2> {log}"


rule circle:
    input:
        code=source_files("circle_runs"),
    output:
        ends=f"{DATA}/tasks/circle/{{reading}}.csv",
        trajectories=f"{DATA}/tasks/trajectories/{{reading}}.csv",
    log:
        f"{LOGS}/circle/{{reading}}.log",
    priority: 20
    conda:
        "../../environment.yml"
    params:
        flags=lambda w: jobs.circle_flags(CONFIG, w.reading),
        event=f"{LOGS}/circle/{{reading}}",
    message:
        "Training and running the circle, {wildcards.reading}"
    shell:
        "rankcollapse circle {params.flags} --output {output.ends}"
        " --trajectories {output.trajectories} --event {params.event} 2> {log}"


rule join:
    input:
        tables=lambda w: joined(w.table),
        code=source_files("task_tables"),
    output:
        f"{DATA}/tasks/{{table}}.csv",
    log:
        f"{LOGS}/join/{{table}}.log",
    wildcard_constraints:
        table="circle|trajectories|lengths",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/join/{{table}}",
    message:
        "Joining the tables of {wildcards.table}"
    shell:
        "rankcollapse join {input.tables} --output {output} --event {params.event} 2> {log}"


rule accuracy:
    input:
        scores=SCORES,
        code=source_files("task_tables"),
    output:
        f"{DATA}/tasks/accuracy.csv",
    log:
        f"{LOGS}/accuracy/all.log",
    conda:
        "../../environment.yml"
    params:
        event=f"{LOGS}/accuracy/all",
    message:
        "Averaging the accuracies of {PROFILE} over the training seeds"
    shell:
        "rankcollapse accuracy {input.scores} --output {output} --event {params.event} 2> {log}"
