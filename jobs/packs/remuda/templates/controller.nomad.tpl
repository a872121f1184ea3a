[[- /* Generated from jobs/controller.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "controller" (var "jobs" .) ]]
job "controller" {
  type = "service"

  # Everything else is started by it.
  priority = 90

  constraint {
    attribute = "${attr.unique.network.ip-address}"
    operator  = "set_contains_any"
    value     = join(",", [[ template "value" (var "servers" .) ]])
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
    count = length([[ template "value" (var "servers" .) ]])

    network {
      port "http" {
        static = [[ template "value" (var "controller_http_port" .) ]]
      }

      port "raft" {
        static = [[ template "value" (var "controller_raft_port" .) ]]
      }
    }

    volume "raft" {
      type   = "host"
      source = [[ template "value" (var "controller_volume" .) ]]
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
        command = [[ template "value" (var "remuda" .) ]]
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
          bootstrap_expect = ${length([[ template "value" (var "servers" .) ]])}
          join             = ${length([[ template "value" (var "servers" .) ]]) == 1 ? "[]" : jsonencode([for s in [[ template "value" (var "servers" .) ]] : "${s}:${[[ template "value" (var "controller_raft_port" .) ]]}"])}

          raft {
            bind      = "0.0.0.0:${[[ template "value" (var "controller_raft_port" .) ]]}"
            advertise = "{{ env "NOMAD_ADDR_raft" }}"
            {{ if nomadVarExists "nomad/jobs/controller" }}{{ with nomadVar "nomad/jobs/controller" }}secret = {{ .raft_secret.Value | toJSON }}{{ end }}{{ end }}
          }

          http {
            bind      = "0.0.0.0:${[[ template "value" (var "controller_http_port" .) ]]}"
            advertise = "{{ env "NOMAD_ADDR_http" }}"
          }

          acl {
            enabled = ${[[ template "value" (var "controller_acl" .) ]]}
          }

          nomad {
            address = ${jsonencode([[ template "value" (var "nomad" .) ]])}
            ca_file = ${jsonencode([[ template "value" (var "controller_nomad_ca" .) ]])}
          }

          consul {
            address = ${jsonencode([[ template "value" (var "consul" .) ]])}
          }
          %{~if [[ template "value" (var "controller_tls" .) ]] != ""}

          tls {
            ca_file   = ${jsonencode("${[[ template "value" (var "controller_tls" .) ]]}/ca.pem")}
            cert_file = ${jsonencode("${[[ template "value" (var "controller_tls" .) ]]}/server.pem")}
            key_file  = ${jsonencode("${[[ template "value" (var "controller_tls" .) ]]}/server-key.pem")}
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
          protocol        = [[ template "value" (var "controller_tls" .) ]] == "" ? "http" : "https"
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
        CONSUL_CACERT = [[ template "value" (var "controller_consul_ca" .) ]]
      }

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
[[ end ]]
