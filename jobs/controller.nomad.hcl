# The controller itself: one `remuda agent` on each of the servers, which form one
# Raft cluster.
#
#   nomad var put nomad/jobs/controller raft_secret="$(openssl rand -hex 32)"
#   nomad job run -var 'servers=["10.0.0.1", "10.0.0.2", "10.0.0.3"]' jobs/controller.nomad.hcl
#   REMUDA_ADDR=http://10.0.0.1:4750 remuda acl bootstrap
#
# Each of these nodes needs a Nomad client with the exec driver, the remuda binary
# in a directory of the exec driver's chroot (/usr/local/bin is), and a host volume
# for the Raft log. It is what the controller knows: keep it on a disk of the node,
# one volume to a node, and never shared.
#
#   client {
#     host_volume "remuda-controller" {
#       path = "/var/lib/remuda"
#     }
#   }
#
# The servers prove to each other that they know raft_secret, or show certificates
# (-var tls). With neither, the controller does not start: any host that reaches an open
# Raft port could take over the cluster. The secret does not encrypt. Where Nomad has
# ACLs, only this job and operators can read it.
#
# The controller asks Nomad with the job's own identity. Where Nomad has ACLs, give it
# what it needs: node { policy = "read" }, submit-job, read-job and list-jobs in the
# namespace of the replicas, and each host volume that their job files mount, as
# host_volume "models" { policy = "read" } for jobs/vllm.nomad.hcl:
#
#   nomad acl policy apply -job controller -namespace default controller policy.hcl
#
# This job's allocations are replaced one at a time; two of three servers are enough
# to go on.

variable "servers" {
  description = "The addresses of the nodes that run a server: one, three or five, as Nomad knows them."
  type        = list(string)
  default     = ["127.0.0.1"]
}

variable "remuda" {
  description = "The remuda binary."
  default     = "/usr/local/bin/remuda"
}

variable "volume" {
  description = "The host volume for the Raft log."
  default     = "remuda-controller"
}

variable "nomad" {
  description = "The Nomad agent that the controller asks."
  default     = "http://127.0.0.1:4646"
}

variable "consul" {
  description = "The Consul agent in which it finds the engines. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = ""
}

variable "nomad_ca" {
  description = "A PEM file of the node, in the chroot, with the CA of Nomad's certificate, where the agent's address is https://…; empty: the system's."
  default     = ""
}

variable "consul_ca" {
  description = "A PEM file of the node, in the chroot, with the CA of Consul's certificate, where the agent's address is https://…; empty: the system's."
  default     = ""
}

variable "acl" {
  description = "Whether the API wants a token."
  default     = true
}

variable "tls" {
  description = "A directory of the node, in the chroot, with ca.pem, server.pem and server-key.pem; empty: no TLS. The certificate bears the DNS name server.remuda and the node's addresses."
  default     = ""
}

variable "http_port" {
  description = "The port of the API."
  type        = number
  default     = 4750
}

variable "raft_port" {
  description = "The port on which the servers talk to each other."
  type        = number
  default     = 4751
}

job "controller" {
  type = "service"

  # Everything else is started by it.
  priority = 90

  constraint {
    attribute = "${attr.unique.network.ip-address}"
    operator  = "set_contains_any"
    value     = join(",", var.servers)
  }

  constraint {
    distinct_hosts = true
  }

  # One after the other, each only once the one before it has found its leader again.
  update {
    max_parallel      = 1
    health_check      = "checks"
    min_healthy_time  = "5s"
    healthy_deadline  = "5m"
    progress_deadline = "15m"
  }

  group "server" {
    count = length(var.servers)

    network {
      port "http" {
        static = var.http_port
      }

      port "raft" {
        static = var.raft_port
      }
    }

    volume "raft" {
      type   = "host"
      source = var.volume
    }

    restart {
      attempts = 100
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    # A server has its log on its node: another node is no help.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    disconnect {
      lost_after = "24h"
      replace    = false
      reconcile  = "keep_original"
    }

    task "agent" {
      driver = "exec"

      config {
        command = var.remuda
        args    = ["agent", "-config", "${NOMAD_SECRETS_DIR}/agent.hcl"]
      }

      # NOMAD_TOKEN.
      identity {
        env = true
      }

      volume_mount {
        volume      = "raft"
        destination = "/raft"
      }

      template {
        destination = "secrets/agent.hcl"
        # The same in every life; a new one comes with a new version of the job.
        change_mode = "noop"
        data        = <<-EOT
          data_dir         = "/raft"
          bootstrap_expect = ${length(var.servers)}
          join             = ${length(var.servers) == 1 ? "[]" : jsonencode([for s in var.servers : "${s}:${var.raft_port}"])}

          raft {
            bind      = "0.0.0.0:${var.raft_port}"
            advertise = "{{ env "NOMAD_ADDR_raft" }}"
            {{ if nomadVarExists "nomad/jobs/controller" }}{{ with nomadVar "nomad/jobs/controller" }}secret = {{ .raft_secret.Value | toJSON }}{{ end }}{{ end }}
          }

          http {
            bind      = "0.0.0.0:${var.http_port}"
            advertise = "{{ env "NOMAD_ADDR_http" }}"
          }

          acl {
            enabled = ${var.acl}
          }

          nomad {
            address = ${jsonencode(var.nomad)}
            ca_file = ${jsonencode(var.nomad_ca)}
          }

          consul {
            address = ${jsonencode(var.consul)}
          }
          %{~if var.tls != ""}

          tls {
            ca_file   = ${jsonencode("${var.tls}/ca.pem")}
            cert_file = ${jsonencode("${var.tls}/server.pem")}
            key_file  = ${jsonencode("${var.tls}/server-key.pem")}
          }
          %{~endif}
        EOT
      }

      service {
        name     = "remuda-controller-api"
        provider = "nomad"
        port     = "http"

        check {
          type            = "http"
          protocol        = var.tls == "" ? "http" : "https"
          tls_skip_verify = true
          path            = "/ready"
          interval        = "2s"
          timeout         = "2s"
        }
      }

      kill_timeout = "10s"

      # Nine tenths of the task's memory, from where on Go collects garbage harder. Change both.
      env {
        GOMEMLIMIT    = "460MiB"
        CONSUL_CACERT = var.consul_ca
      }

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
