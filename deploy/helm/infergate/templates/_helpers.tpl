{{- /* At most 50 characters: tools append suffixes (-pods, -comparison, Flagger's -primary), and names of services have
       at most 63. The schema limits fullnameOverride likewise. */ -}}
{{- define "infergate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "infergate" .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-infergate" .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "infergate.selector" -}}
app.kubernetes.io/name: infergate
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "infergate.labels" -}}
{{ include "infergate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "infergate.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.endpointSlices.enabled -}}
{{- include "infergate.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "infergate.dnsEgress" -}}
- to:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.dnsNamespace }}}
  ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}
