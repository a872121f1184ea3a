# Generated from the job files in jobs by `make reference`: do not edit.

variable "jobs" {
  description = "The jobs to run."
  type        = list(string)
  default     = ["controller", "node", "gateway", "autoscaler"]
}

variable "servers" {
  description = "The addresses of the nodes that run a server: one, three or five, as Nomad knows them."
  type        = list(string)
  default     = ["127.0.0.1"]
}

variable "remuda" {
  description = "The remuda binary."
  type        = string
  default     = "/usr/local/bin/remuda"
}

variable "controller_volume" {
  description = "The host volume for the Raft log."
  type        = string
  default     = "remuda-controller"
}

variable "nomad" {
  description = "The Nomad agent that the controller asks."
  type        = string
  default     = "http://127.0.0.1:4646"
}

variable "consul" {
  description = "The Consul agent in which it finds the engines. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  type        = string
  default     = ""
}

variable "controller_nomad_ca" {
  description = "A PEM file of the node, in the chroot, with the CA of Nomad's certificate, where the agent's address is https://…; empty: the system's."
  type        = string
  default     = ""
}

variable "controller_consul_ca" {
  description = "A PEM file of the node, in the chroot, with the CA of Consul's certificate, where the agent's address is https://…; empty: the system's."
  type        = string
  default     = ""
}

variable "controller_acl" {
  description = "Whether the API wants a token."
  type        = bool
  default     = true
}

variable "controller_tls" {
  description = "A directory of the node, in the chroot, with ca.pem, server.pem and server-key.pem; empty: no TLS. The certificate bears the DNS name server.remuda and the node's addresses."
  type        = string
  default     = ""
}

variable "controller_http_port" {
  description = "The port of the API."
  type        = number
  default     = 4750
}

variable "controller_raft_port" {
  description = "The port on which the servers talk to each other."
  type        = number
  default     = 4751
}

variable "node_socket_dir" {
  description = "Where the sockets are; the same as gms_socket_dir of the remuda-device plugin."
  type        = string
  default     = "/run/remuda"
}

variable "node_state_dir" {
  description = "Where lockd keeps its state: a directory on the node's own disk, which outlives reboots."
  type        = string
  default     = "/var/lib/remuda/lockd"
}

variable "node_memory" {
  description = "Flags of `remuda gms` that say whose memory it shares. The default is all GPUs of the CUDA driver."
  type        = list(string)
  default     = ["-backend", "cuda"]
}

variable "gateway_count" {
  description = "How many gateways, each on a node of its own."
  type        = number
  default     = 1
}

variable "gateway_port" {
  description = "The port for clients."
  type        = number
  default     = 8080
}

variable "gateway_advertise" {
  description = "The URL at which the controller reaches the gateways, for the chat of its web page; empty: each one's address. With TLS, a name that the certificate bears."
  type        = string
  default     = ""
}

variable "gateway_operator_port" {
  description = "The port for operators, at the address of the node: /metrics, /live and /ready."
  type        = number
  default     = 4752
}

variable "controllers" {
  description = "URLs of the controller's servers; empty: there is no controller."
  type        = list(string)
  default     = []
}

variable "ca_cert" {
  description = "A PEM file with the CA of the controller's certificate; empty: the system's."
  type        = string
  default     = ""
}

variable "gateway_tls_cert" {
  description = "A PEM file on the node with the certificate for clients; empty: plain HTTP."
  type        = string
  default     = ""
}

variable "gateway_tls_key" {
  description = "The PEM file with the certificate's private key."
  type        = string
  default     = ""
}

variable "gateway_engine_ca" {
  description = "A PEM file on the node with the CA of the engines' certificates: the gateway speaks TLS with engines; empty: plain HTTP."
  type        = string
  default     = ""
}

variable "autoscaler_policies" {
  description = "Policies for models whose files have none, as in jobs/*.policy.hcl."
  type        = string
  default     = ""
}

variable "autoscaler_strategies" {
  description = "The strategies that policies may name."
  type        = list(string)
  default     = ["remuda-capacity", "remuda-hpa", "remuda-utilization", "remuda-predictive"]
}

variable "autoscaler_agent" {
  description = "The nomad-autoscaler binary."
  type        = string
  default     = "nomad-autoscaler"
}

variable "autoscaler_plugin_dir" {
  description = "The directory that has the plugin remuda-autoscaler."
  type        = string
  default     = "/opt/nomad-autoscaler/plugins"
}

variable "autoscaler_data_dir" {
  description = "Where the strategies keep their windows and decisions: a directory of the node, which outlives restarts."
  type        = string
  default     = "/var/lib/nomad-autoscaler"
}
