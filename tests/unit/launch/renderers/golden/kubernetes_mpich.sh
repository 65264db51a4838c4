#!/usr/bin/env bash
# kubectl
#
# file: digits.yaml, which stays for you to edit and apply again
set -eu
cat > digits.yaml <<'END-OF-FILE'
# MPIJob digits: kubectl apply -f digits.yaml
#
# workers: 7 on 2 hosts, up to 4 workers each
# threads: 8 for each worker, so that no two compute on one core: 32 cores, 4 workers a host
# GPUs: a worker uses the GPU of its local rank and sees all 4 of its host, so that NCCL finds the links
#   between them
# network interface: ib0, as --nic says
# MPI: MPICH in the image; --mpi says otherwise
# signal: none for the workers before the job or a pod is ended: give the command a --max-time
# launcher: starts when all workers are ready, since names of pods that are not cannot be resolved
# /dev/shm: 8Gi of memory: 64 MiB, the default, are too few for NCCL and data workers
# user: 1000, not root; sshd listens where /home/hvdtrain/.sshd_config says
# variables: from a secret: kubectl create secret generic digits-env --from-env-file=FILE
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: digits
  namespace: train
spec:
  slotsPerWorker: 4
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 2
    activeDeadlineSeconds: 5400
  mpiImplementation: MPICH
  launcherCreationPolicy: WaitForWorkersReady
  sshAuthMountPath: /home/hvdtrain/.ssh
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          terminationGracePeriodSeconds: 91
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
            - -n
            - "7"
            - -bind-to
            - none
            - -genvlist
            - API_KEY,HOROVOD_GLOO_IFACE,NCCL_SOCKET_IFNAME,OMP_NUM_THREADS
            - -iface
            - ib0
            - python
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
            - name: FI_TCP_IFACE
              value: ib0
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
            resources:
              limits:
                cpu: "1"
                memory: "1Gi"
            volumeMounts:
            - name: shm
              mountPath: /dev/shm
            - name: data
              mountPath: /data
          volumes:
          - name: shm
            emptyDir:
              medium: Memory
              sizeLimit: "8Gi"
          - name: data
            persistentVolumeClaim:
              claimName: digits
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 91
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
              limits:
                cpu: "32"
                memory: "64Gi"
                nvidia.com/gpu: 4
            volumeMounts:
            - name: shm
              mountPath: /dev/shm
            - name: data
              mountPath: /data
          volumes:
          - name: shm
            emptyDir:
              medium: Memory
              sizeLimit: "8Gi"
          - name: data
            persistentVolumeClaim:
              claimName: digits
END-OF-FILE

exec kubectl apply \
    -f digits.yaml
