#!/usr/bin/env bash
# The files of scripts/cluster/ as their controllers run them, on one machine: two pods are network namespaces with a disk, an
# address and the names of their own (dev/hosts.sh).
#
#   dev/two_pods.sh [FILE...]     of scripts/cluster/, by name; all of them by default
#
# From each file comes the command, with two ranks in place of eight, and from the controller the variables, names and the
# hostfile (`environment` below). Two pods train to the bits of one process. Then one is lost in the middle, with its disk and
# that of the other: the other must end with an exit code after which the file starts it again. Both do so on new disks, and
# go on from a bucket to the same bits.
#
# Needs root, network namespaces, python3-yaml, mpirun for mpijob.yaml, and ./train_gpt and data/tokenize as built by make
# ($ANVIL_PROGRAMS: where they lie). Exit code 2: something is missing here, and says what; 1: a run went wrong.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

# shellcheck source=dev/hosts.sh
. dev/hosts.sh

find_programs
need python3:python3
python3 -c 'import yaml' 2>/dev/null || fail 2 'python3 has no yaml: install python3-yaml'
files=("$@")
[ $# -gt 0 ] || files=(trainjob.yaml indexed_job.yaml jobset.yaml mpijob.yaml skypilot.yaml slurm.sh)
cores=$(nproc)
set_up_hosts none "0-$((cores - 1))" "0-$((cores - 1))"
root=$PWD steps=200
mkdir "$scratch/home" "$scratch/bin"
ln -s "$train" "$scratch/bin/train_gpt"
# As the controllers' services name the pods.
cat >"$scratch/names" <<NAMES
127.0.0.1 localhost
${addresses[0]} gpt-node-0-0.gpt gpt-0.gpt gpt-train-0-0.gpt gpt-worker-0.gpt.default.svc node1
${addresses[1]} gpt-node-0-1.gpt gpt-1.gpt gpt-train-0-1.gpt gpt-worker-1.gpt.default.svc node2
NAMES
"$tokenize" --stories 2000 --tokenizer char --out "$scratch/data" >/dev/null
cat >"$scratch/run.conf" <<'CONF'
train-data = "data/train_*.bin"
val-data = ""
device = "cpu"
dtype = "fp32"
num-layers = 2
num-heads = 2
channels = 32
seq-len = 16
batch-size = 2
total-batch-size = 256
grad-sum = "tree"
warmup-steps = 2
sample-tokens = 0
threads = 1
checkpoint-every = 10
keep = 1
CONF
printf 'steps = %s\n' "$steps" >>"$scratch/run.conf"

# Fresh disks, with what an image has; run.conf names the bucket of this run.
new_disks() { # BUCKET
    local host
    for host in 0 1; do
        rm -rf "$scratch/disk-$host"
        mkdir "$scratch/disk-$host"
        cp -r "$scratch/data" "$scratch/run.conf" "$scratch/disk-$host/"
        ln -s "$train" "$scratch/disk-$host/train_gpt"
        mkdir -p "$scratch/disk-$host/etc/mpi"
        printf 'gpt-worker-%s.gpt.default.svc slots=2\n' 0 1 >"$scratch/disk-$host/etc/mpi/hostfile"
        cat >>"$scratch/disk-$host/run.conf" <<CONF
after-checkpoint = "$root/scripts/bucket.sh put $scratch/bucket/$1"
before-resume = "$root/scripts/bucket.sh get $scratch/bucket/$1"
CONF
    done
}

# The shell's words for what a controller runs in the pod of that number; nothing: no pod of its own.
pod_command() { # FILE NUMBER
    python3 -I - "scripts/cluster/$1" "$2" "$scratch" "${addresses[*]}" <<'PYTHON'
import re, shlex, sys, yaml
path, index, scratch, addresses = sys.argv[1:]
text = open(path, encoding="utf-8").read()
# Two GPUs in each pod.
text, changes = re.subn(r'(gpu: |nproc-per-node |numProcPerNode: |slotsPerWorker: |H100:)8\b', r"\g<1>2", text)
text = text.replace('"16"', '"4"')
documents = list(yaml.safe_load_all(text))
job = documents[-1]
name = job.get("metadata", {}).get("name")
environment = {"PATH": f"{scratch}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
kind = job.get("kind", "SkyPilot")
if kind == "TrainJob":  # Kubeflow Trainer 2.3.0, pkg/runtime/framework/plugins/torch/torch.go
    assert job["spec"]["runtimeRef"] == {"kind": documents[0]["kind"], "name": documents[0]["metadata"]["name"]}
    job_set = documents[0]["spec"]["template"]["spec"]
    container = trainer = job["spec"]["trainer"]
    environment |= {
        "PET_NNODES": trainer["numNodes"], "PET_NPROC_PER_NODE": trainer["numProcPerNode"], "PET_NODE_RANK": index,
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}", "PET_MASTER_PORT": 29500,
    }
elif kind == "Job":  # Kubernetes, "Indexed Job": the pod's name is JOB-INDEX, and a service's SUBDOMAIN resolves it
    service, pod = documents[0], job["spec"]["template"]["spec"]
    assert service["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"batch.kubernetes.io/job-name": name},
    } and pod["subdomain"] == service["metadata"]["name"]
    container = pod["containers"][0]
    environment["JOB_COMPLETION_INDEX"] = index
elif kind == "JobSet":  # JobSet 0.9.1: pods SET-JOB-REPLICA-INDEX, with the set's name as subdomain
    job_set = job["spec"]
    container = job_set["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    environment["JOB_COMPLETION_INDEX"] = index
elif kind == "MPIJob":  # mpi-operator 0.8.0, pkg/controller/mpi_job_controller.go: the launcher alone runs a command
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert replicas["Worker"]["replicas"] == 2 and all(each["restartPolicy"] == "OnFailure" for each in replicas.values())
    container = replicas["Launcher"]["template"]["spec"]["containers"][0] if index == "0" else None
    environment |= {
        "K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "etc/mpi/hostfile", "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": job["spec"]["slotsPerWorker"],
        "OMPI_MCA_plm_rsh_agent": f"{scratch}/ssh",  # ours
    }
else:  # SkyPilot 0.10, docs "Environment Variables and Secrets"
    environment |= {
        "SKYPILOT_NUM_NODES": job["num_nodes"], "SKYPILOT_NODE_RANK": index, "SKYPILOT_NUM_GPUS_PER_NODE": 2,
        "SKYPILOT_NODE_IPS": addresses.replace(" ", "\n"),
    }
    container = {"command": ["bash", "-c"], "args": [job["run"]]}
assert changes > 0
# A lost rank's code 3 starts the pods again; those of other errors do not.
if kind in ("TrainJob", "Job", "JobSet"):
    spec = job["spec"] if kind == "Job" else job_set["replicatedJobs"][0]["template"]["spec"]
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 2, 4, 5]}}
    ] and spec["template"]["spec"]["restartPolicy"] == "Never"
if kind in ("TrainJob", "JobSet"):  # and all of them, as the job does not start them itself
    assert spec["backoffLimit"] == 0 and job_set["failurePolicy"] == {
        "maxRestarts": 10,
        "rules": [{"name": "wrong", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
if kind == "SkyPilot":
    assert job["resources"]["job_recovery"]["recover_on_exit_codes"] == [3]
if kind in ("TrainJob", "Job", "JobSet"):  # see the files
    assert container["command"] == ["sh", "-c"] and container["args"][0].endswith("; exit $?")
if container:
    for variable in container.get("env", ()):
        secret = variable["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "anvil", "key": "key"}, secret
        environment[variable["name"]] = "a key of sixteen bytes"
    if "secrets" in job:
        environment["ANVIL_KEY"] = "a key of sixteen bytes"
    variables = [f"{name}={value}" for name, value in environment.items()]
    print(shlex.join(["env", *variables, *container["command"], *container["args"]]))
PYTHON
}

# As mpirun calls ssh: OPTIONS HOST COMMAND.
cat >"$scratch/ssh" <<SCRIPT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do [ "\$1" != -o ] || shift; shift; done
host=1
[ "\$1" != gpt-worker-0.gpt.default.svc ] || host=0
shift
exec "$scratch/on_host" \$host sh -c "\$*"
SCRIPT
# As a Slurm job calls them, in the first node: two tasks on each node, with the variables of Slurm 24.05's srun.
cat >"$scratch/bin/srun" <<SCRIPT
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
for rank in 0 1 2 3; do
    "$scratch/on_host" \$((rank / 2)) env SLURM_STEP_ID=0 SLURM_PROCID=\$rank SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=\$((rank % 2)) \\
        SLURM_STEP_NODELIST=node[1-2] "\$@" &
done
code=0
for _ in 1 2 3 4; do
    wait -n && continue || ended=\$?
    [ \$ended -lt \$code ] || code=\$ended
done
exit \$code
SCRIPT
printf '#!/bin/sh\n[ "$1" = requeue ] && echo requeued >&2 || printf "node1\\nnode2\\n"\n' >"$scratch/bin/scontrol"
chmod +x "$scratch/ssh" "$scratch/bin/srun" "$scratch/bin/scontrol"

declare -A pids
start() { # FILE
    local number command
    pids=()
    for number in 0 1; do
        if [ "$1" = slurm.sh ]; then
            # shellcheck disable=SC2016
            command=$(printf 'env PATH=%q SLURM_JOB_ID=7 SLURM_JOB_NODELIST=node[1-2] SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_PER_TASK=1 %q --config run.conf' \
                "$scratch/bin:$PATH" "$root/scripts/cluster/slurm.sh")
            [ $number = 0 ] || command=
        else
            command=$(pod_command "$1" $number) || fail 1 "$1 is not as it should be"
        fi
        [ -n "$command" ] || continue
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$scratch/on_host" $number sh -c "exec $command" \
            >"$scratch/pod-$number" 2>&1 </dev/null &
        pids[$number]=$!
    done
}
finish() { # FILE CODES [NUMBER...]: of those pods, by default all
    local number code file=$1 codes=$2
    shift 2
    [ $# -gt 0 ] || set -- "${!pids[@]}"
    for number; do
        code=0
        wait "${pids[$number]}" || code=$?
        [[ $code =~ ^($codes)$ ]] && continue
        tail -n 30 "$scratch"/pod-* >&2
        fail 1 "$file: pod $number ended with exit code $code; expected $codes"
    done
}
last=$(printf 'step_%08d' $steps)
same_bits() { # FILE
    cmp "$scratch/disk-0/run/default/$last/model.safetensors" "$scratch/alone/$last/model.safetensors" ||
        fail 1 "$1: two pods have other bits than one process"
}

(cd "$scratch" && ./bin/train_gpt --config run.conf --out-dir alone) >"$scratch/output" 2>&1 || {
    cat "$scratch/output" >&2
    fail 1 'one process fails'
}
for file in "${files[@]}"; do
    if [ "$file" = mpijob.yaml ] && { ! command -v mpirun >/dev/null || ! ldd "$train" | grep -q libmpi; }; then
        echo "$file: left out, without MPI"
        continue
    fi
    new_disks "$file"
    start "$file"
    finish "$file" 0
    same_bits "$file"

    new_disks "$file-lost"
    start "$file"
    until compgen -G "$scratch/bucket/$file-lost/step_*/manifest.json" >/dev/null; do
        kill -0 "${pids[0]}" 2>/dev/null || finish "$file" none 0
        sleep 0.01
    done
    for pid in $(ip netns pids "${hosts[1]}"); do kill -KILL "$pid" 2>/dev/null || true; done
    [ -z "${pids[1]-}" ] || wait "${pids[1]}" 2>/dev/null || true
    # 3: a rank was lost. mpirun ends as it likes, and slurm.sh has asked for the next attempt.
    case $file in
        mpijob.yaml) finish "$file" '[1-9][0-9]*' 0 ;;
        slurm.sh)
            finish "$file" 0 0
            grep -qx requeued "$scratch/pod-0" || fail 1 "$file: the job was not requeued"
            ;;
        *) finish "$file" 3 0 ;;
    esac
    [ ! -e "$scratch/disk-0/run/default/$last" ] || fail 2 'this machine is too busy: the run was over before a pod was lost'
    wait
    new_disks "$file-lost"
    start "$file"
    finish "$file" 0
    same_bits "$file"
    echo "$file: two pods have the bits of one process; one was lost, and both went on from the bucket to the same bits"
done
