{{- /* A short name, so that the pods' names, which have a tier and a number more, stay valid. */ -}}
{{- define "inferway.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "inferway" $name) }}{{ $name = printf "%s-inferway" $name }}{{ end -}}
{{- $name | trunc 30 | trimSuffix "-" -}}
{{- end }}

{{- define "inferway.selector" -}}
app.kubernetes.io/name: inferway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "inferway.labels" -}}
{{ include "inferway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "inferway.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "inferway.scheme" -}}
{{ if .Values.tls.secret }}https{{ else }}http{{ end }}
{{- end }}

{{- /* All nodes of the network, as a JSON list of node, tier, pod and host. */ -}}
{{- define "inferway.nodes" -}}
{{- $full := include "inferway.fullname" . -}}
{{- $all := list -}}
{{- range $tier := .Values.tiers -}}
{{- range $number := until (int (default 1 $tier.nodes)) -}}
{{- $pod := printf "%s-%s-%d" $full $tier.name $number -}}
{{- $node := $tier.name -}}
{{- if $tier.nodes }}{{ $node = printf "%s-%d" $tier.name $number }}{{ end -}}
{{- $all = append $all (dict "node" $node "tier" $tier.name "host" (printf "%s.%s-nodes" $pod $full)) -}}
{{- end -}}
{{- end -}}
{{- $all | toJson -}}
{{- end }}

{{- define "inferway.secured" -}}
{{- if or .Values.certificates.secret .Values.certificates.certManager.issuer }}true{{ end -}}
{{- end }}

{{- define "inferway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "inferway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Ends of the drain: preStop, and the time that the pod is given for all of it. */ -}}
{{- define "inferway.stopping" -}}
{{- with .Values.drain -}}
{{ add .preStop .delay .grace .margin }}
{{- end -}}
{{- end }}

{{- /* Options that `serve` and `node` have in common. */ -}}
{{- define "inferway.options" -}}
- --drain-delay={{ .Values.drain.delay }}
- --grace={{ .Values.drain.grace }}
{{- if .Values.keys.secret }}
- --keys=/run/inferway/keys/keys
{{- end }}
{{- if .Values.tls.secret }}
- --tls-cert=/run/inferway/tls/tls.crt
- --tls-key=/run/inferway/tls/tls.key
{{- end }}
{{- range .Values.options }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "inferway.ports" -}}
- {name: http, containerPort: 8000}
{{- if .Values.grpc }}
- {name: grpc, containerPort: 8001}
{{- end }}
{{- if .Values.keys.secret }}
- {name: admin, containerPort: 8002}
{{- end }}
{{- end }}

{{- /* Health needs no key. The listeners answer while the process starts, so that liveness can be
asked for at once; the first question waits until Python has come up. */ -}}
{{- define "inferway.probes" -}}
{{- $scheme := include "inferway.scheme" . | upper -}}
startupProbe:
  httpGet: {path: /v2/health/live, port: http, scheme: {{ $scheme }}}
  periodSeconds: {{ .Values.probes.period }}
  failureThreshold: {{ max 1 (div .Values.probes.starting .Values.probes.period) }}
livenessProbe:
  httpGet: {path: /v2/health/live, port: http, scheme: {{ $scheme }}}
  periodSeconds: {{ .Values.probes.period }}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /v2/health/ready, port: http, scheme: {{ $scheme }}}
  periodSeconds: {{ .Values.probes.period }}
  timeoutSeconds: 5
  failureThreshold: 2
lifecycle:
  preStop:
    sleep: {seconds: {{ .Values.drain.preStop }}}
{{- end }}

{{- define "inferway.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
- {name: kept, mountPath: /var/cache/inferway, subPath: cache}
- {name: kept, mountPath: /var/lib/inferway, subPath: state}
- {name: deployment, mountPath: /etc/inferway, readOnly: true}
{{- include "inferway.secretMounts" . }}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "inferway.secretMounts" -}}
{{- if .Values.keys.secret }}
- {name: keys, mountPath: /run/inferway/keys, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /run/inferway/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "inferway.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
{{- include "inferway.secretVolumes" . }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "inferway.secretVolumes" -}}
{{- if .Values.keys.secret }}
- name: keys
  secret: {secretName: {{ .Values.keys.secret }}, defaultMode: 288}
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ .Values.tls.secret }}, defaultMode: 288}
{{- end }}
{{- end }}

{{- define "inferway.deploymentConfigMap" -}}
{{- .Values.deploymentConfigMap | default (printf "%s-deployment" (include "inferway.fullname" .)) -}}
{{- end }}

{{- /* The same for every pod. */ -}}
{{- define "inferway.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "inferway.stopping" . }}
securityContext:
  {{- include "inferway.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Changes when the deployment file does, so that pods are made anew. */ -}}
{{- define "inferway.podAnnotations" -}}
checksum/deployment: {{ printf "%s%s" .Values.deployment (toJson .Values.tiers) | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
