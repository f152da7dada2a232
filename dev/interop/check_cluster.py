#!/usr/bin/env python3
"""Checks the files of scripts/cluster/ against the schemas that their controllers publish, which PyPI's packages have.

    VENV/bin/python dev/interop/check_cluster.py     VENV: made by dev/interop/check_interop.sh

Kubernetes' objects by kubernetes-validate; TrainJob, TrainingRuntime and JobSet by the models of kubeflow-trainer-api; a SkyPilot
task by skypilot, of which only the schema is imported; an MPIJob, which no package has, by the table below. Then each field of each
file is misspelled, which the same schema must refuse. Exit code 1 with a line for each file that is wrong.
"""

import functools
import importlib.metadata
import pathlib
import sys
import types
from unittest import mock

import differences
import jsonschema
import kubernetes_validate
import yaml
from differences import check
from kubeflow_trainer_api import models

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Below these the names are the user's.
FREE = {"labels", "limits", "secrets", "selector"}


def fields(**types_of):
    return {"type": "object", "properties": types_of, "additionalProperties": False}


# What an MPIJob of mpi-operator v0.8.0 (101db14) may have: manifests/base/kubeflow.org_mpijobs.yaml, and the values that
# pkg/apis/kubeflow/validation/validation.go allows.
INTEGER, TEXT, FLAG, ANY = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"type": "object"}
REPLICAS = fields(replicas=INTEGER, restartPolicy={"enum": ["Never", "OnFailure"]}, template=ANY)
MPIJOB = fields(
    apiVersion=TEXT, kind=TEXT, metadata=ANY,
    spec=fields(
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]}, mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        runLauncherAsWorker=FLAG, slotsPerWorker=INTEGER, sshAuthMountPath=TEXT,
        mpiReplicaSpecs={**fields(Launcher=REPLICAS, Worker=REPLICAS), "required": ["Launcher", "Worker"]},
        runPolicy=fields(
            activeDeadlineSeconds=INTEGER, backoffLimit=INTEGER, cleanPodPolicy={"enum": ["None", "Running", "All"]}, managedBy=TEXT,
            schedulingPolicy=ANY, suspend=FLAG, ttlSecondsAfterFinished=INTEGER,
        ),
    ),
)  # fmt: skip


def validate(document, schema):
    jsonschema.Draft202012Validator(schema).validate(document)


def kubernetes(document):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def mpijob(document):
    validate(document, MPIJOB)
    for replicas in document["spec"]["mpiReplicaSpecs"].values():
        kubernetes({"apiVersion": "v1", "kind": "PodTemplate", "metadata": document["metadata"], "template": replicas["template"]})


@functools.cache
def strict_schema(model):
    """Of a pydantic model, and without fields that it does not name."""
    schema = model.model_json_schema(by_alias=True)
    for part in (schema, *schema["$defs"].values()):
        if "one_of_schemas" in part.get("properties", ()):  # a quantity, or a port: 8 or "8"
            part.clear()
            part["type"] = ["string", "number"]
        elif "properties" in part:
            part["additionalProperties"] = False
    return schema


@functools.cache
def skypilot_schemas():
    """Of a task and of its resources. The package `sky` imports sixty others; its schemas need two modules of its own."""
    sky = types.ModuleType("sky")
    distribution = importlib.metadata.distribution("skypilot")
    sky.__path__, sky.__version__ = [str(distribution.locate_file("sky"))], distribution.version
    sys.modules["sky"], sys.modules["sky.skylet.autostop_lib"] = sky, mock.MagicMock()
    from sky.utils import schemas

    schemas._task_config_schema = dict  # of the field `config`, which imports the rest
    schemas._allow_additional_properties = lambda: False  # as plugins may have
    return schemas.get_task_schema(), schemas.get_resources_schema()


def skypilot(document):
    task, resources = skypilot_schemas()
    validate(document, task)
    validate(document["resources"], resources)


SCHEMAS = {
    ("v1", "Service"): kubernetes,
    ("batch/v1", "Job"): kubernetes,
    ("kubeflow.org/v2beta1", "MPIJob"): mpijob,
    (None, None): skypilot,
}
for version, kind, model in (
    ("jobset.x-k8s.io/v1alpha2", "JobSet", models.JobsetV1alpha2JobSet),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", models.TrainerV1alpha1TrainJob),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", models.TrainerV1alpha1TrainingRuntime),
):
    SCHEMAS[version, kind] = lambda document, model=model: validate(document, strict_schema(model))


def wrong(document):
    """What a document has that its schema has not, or None."""
    of = document.get("apiVersion"), document.get("kind")
    try:
        if of not in SCHEMAS:
            return f"expected {' or '.join(' '.join(known) for known in SCHEMAS if known[0])}, found {of}"
        SCHEMAS[of](document)
    except jsonschema.ValidationError as error:
        while error.context:  # of what must be one of several
            error = max(error.context, key=lambda each: len(each.absolute_path))
        return f"{error.json_path}: {error.message}"


def all_fields(node, names_are_free=False):
    """(mapping, name) of each field whose name a schema knows."""
    for name, value in list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()):
        if isinstance(node, dict) and not names_are_free:
            yield node, name
        yield from all_fields(value, name in FREE)


def main():
    # It reads these files, of megabytes, for each document.
    kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
    for path in sorted((ROOT / "scripts/cluster").glob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        problems, misspelled = [problem for document in documents if (problem := wrong(document))], 0
        for document in documents if not problems else ():
            for place, name in all_fields(document):
                place[name + "s"] = place.pop(name)
                if not wrong(document):
                    problems.append(f"its schema takes {name}s for {name}, too")
                place[name] = place.pop(name + "s")
                misspelled += 1
        check(f"{path.name}: as its schema says", not problems, "; ".join(problems) or f"and not with any of {misspelled} fields misspelled")
    print(f"scripts/cluster/ and the schemas of its controllers: {differences.count} differences")
    return differences.count > 0


if __name__ == "__main__":
    sys.exit(main())
