# Everything of one profile: snakemake --cores all [--configfile config/PROFILE.yaml].
# The default profile is named in profiles/default/config.yaml.


include: "workflow/rules/common.smk"
include: "workflow/rules/checkpoints.smk"
include: "workflow/rules/residuals.smk"
include: "workflow/rules/tasks.smk"
include: "workflow/rules/paths.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.checkpoints.input,
        rules.residuals.input,
        rules.tasks.input,
        rules.paths_and_bounds.input,
        rules.figures.input,
        rules.report.output,
    message:
        "All of {PROFILE} is there"
