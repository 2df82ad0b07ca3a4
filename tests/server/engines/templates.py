"""A template as an operator writes it."""

TEMPLATE = """
apiVersion: batch/v1
kind: Job
metadata:
  labels: {team: models}
spec:
  template:
    metadata:
      annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "true"}
    spec:
      serviceAccountName: reshard
      nodeSelector: {disk: fast}
      tolerations: [{key: spot, operator: Exists, effect: NoSchedule}]
      containers:
        - name: logs
          image: logs:1
        - name: convert
          resources:
            requests: {cpu: "4", memory: 1280Mi}
          env: [{name: OMP_NUM_THREADS, value: "1"}]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: reshard-data}
"""
