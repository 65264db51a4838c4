#!/usr/bin/env bash
# kubectl
#
# file: digits.yaml, which stays for you to edit and apply again
set -eu
cat > digits.yaml <<'END-OF-FILE'
# TrainJob digits: kubectl apply -f digits.yaml
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# network interface: ib0, as --nic says
# Kubeflow Trainer: 2.2 or later: earlier ones have no runtimePatches
# runtime: torch-distributed, which tells torchrun where the others are; --runtime names another for torch
# /dev/shm: 8Gi of memory: 64 MiB, the default, are too few for NCCL and data workers
# user: 1000, not root
# variables: from a secret: kubectl create secret generic digits-env --from-env-file=FILE
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: digits
  namespace: train
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: registry.example.com/hvdtrain:1
    command:
    - torchrun
    args:
    - -m
    - hvdtrain
    - train
    - --data.path
    - it's a folder; $HOME
    - --max-steps
    - "3"
    - --output-dir
    - /data/runs
    env:
    - name: HOROVOD_GLOO_IFACE
      value: ib0
    - name: NCCL_SOCKET_IFNAME
      value: =ib0
    - name: OMP_NUM_THREADS
      value: "8"
    - name: API_KEY
      valueFrom:
        secretKeyRef:
          name: digits-env
          key: API_KEY
    numNodes: 2
    numProcPerNode: 4
    resourcesPerNode:
      limits:
        cpu: "32"
        memory: "64Gi"
        nvidia.com/gpu: 4
  runtimePatches:
  - manager: hvdtrain/launch
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template:
              spec:
                template:
                  spec:
                    volumes:
                    - name: shm
                      emptyDir:
                        medium: Memory
                        sizeLimit: "8Gi"
                    - name: data
                      persistentVolumeClaim:
                        claimName: digits
                    containers:
                    - name: node
                      volumeMounts:
                      - name: shm
                        mountPath: /dev/shm
                      - name: data
                        mountPath: /data
                    securityContext:
                      runAsUser: 1000
                      runAsGroup: 1000
                      fsGroup: 1000
                      runAsNonRoot: true
  activeDeadlineSeconds: 5400
END-OF-FILE

exec kubectl apply \
    -f digits.yaml
