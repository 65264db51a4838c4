#!/usr/bin/env bash
# kubectl
#
# file: hvdtrain.yaml, which stays for you to edit and apply again
set -eu
cat > hvdtrain.yaml <<'END-OF-FILE'
# MPIJob hvdtrain: kubectl apply -f hvdtrain.yaml
#
# workers: 8 on 2 hosts, up to 4 workers each
# threads: each worker takes its share of the cores that it finds on its host when it starts
# GPUs: a worker uses the GPU of its local rank, if its host has any
# network interface: a pod has one, and MPI finds it; --nic chooses
# MPI: Open MPI 5 in the image; --mpi says otherwise
# signal: none for the workers before the job or a pod is ended: give the command a --max-time
# launcher: starts when all workers are ready, since names of pods that are not cannot be resolved
# /dev/shm: 8Gi of memory: 64 MiB, the default, are too few for NCCL and data workers
# user: 1000, not root; sshd listens where /home/hvdtrain/.sshd_config says
# run folder: INSIDE A POD, AND DELETED WITH IT, unless a config file names another: give --claim NAME, and
#   the command --output-dir /data/FOLDER
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: hvdtrain
spec:
  slotsPerWorker: 4
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 0
  mpiImplementation: OpenMPI
  launcherCreationPolicy: WaitForWorkersReady
  sshAuthMountPath: /home/hvdtrain/.ssh
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          terminationGracePeriodSeconds: 30
          securityContext:
            runAsUser: 1000
            runAsGroup: 1000
            fsGroup: 1000
            runAsNonRoot: true
          containers:
          - name: launcher
            image: registry.example.com/hvdtrain:1
            command:
            - mpirun
            args:
            - -np
            - "8"
            - --bind-to
            - none
            - --map-by
            - slot
            - --hostfile
            - /etc/mpi/hostfile
            - --prtemca
            - plm_ssh_args
            - -o ConnectionAttempts=10
            - python
            - -m
            - hvdtrain
            - train
            - --data.path
            - it's a folder; $HOME
            - --max-steps
            - "3"
            resources:
              limits:
                cpu: "1"
                memory: "1Gi"
            volumeMounts:
            - name: shm
              mountPath: /dev/shm
          volumes:
          - name: shm
            emptyDir:
              medium: Memory
              sizeLimit: "8Gi"
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 30
          securityContext:
            runAsUser: 1000
            runAsGroup: 1000
            fsGroup: 1000
            runAsNonRoot: true
          containers:
          - name: worker
            image: registry.example.com/hvdtrain:1
            command:
            - /usr/sbin/sshd
            args:
            - -De
            - -f
            - /home/hvdtrain/.sshd_config
            resources:
              limits: {}
            volumeMounts:
            - name: shm
              mountPath: /dev/shm
          volumes:
          - name: shm
            emptyDir:
              medium: Memory
              sizeLimit: "8Gi"
END-OF-FILE

exec kubectl apply \
    -f hvdtrain.yaml
