[[- /* Generated from jobs/gateway.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "gateway" (var "jobs" .) ]]
job "gateway" {
  type = "service"

  # Every request passes through it.
  priority = 80

  constraint {
    distinct_hosts = true
  }

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "2m"
  }

  group "gateway" {
    count = [[ template "value" (var "gateway_count" .) ]]

    network {
      port "http" {
        static = [[ template "value" (var "gateway_port" .) ]]
      }
      port "operators" {
        static = [[ template "value" (var "gateway_operator_port" .) ]]
      }
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "250ms"
      mode     = "delay"
    }

    task "gateway" {
      driver = "raw_exec"

      config {
        command = [[ template "value" (var "remuda" .) ]]
        args    = ["gateway", "-config", "${NOMAD_TASK_DIR}/gateway.hcl", "-operator-listen", "${NOMAD_ADDR_operators}"]
      }

      # A new token comes with a restart.
      template {
        destination = "local/gateway.hcl"
        perms       = "600"
        data        = <<-EOT
          listen    = "0.0.0.0:${[[ template "value" (var "gateway_port" .) ]]}"
          advertise = ${jsonencode([[ template "value" (var "gateway_advertise" .) ]])}

          consul {
            address = ${jsonencode([[ template "value" (var "consul" .) ]])}
          }

          timeouts {
            # Load balancers see that /ready says 503 before connections are refused.
            lame_duck = "3s"
            drain     = "22s"
          }
          %{~if [[ template "value" (var "gateway_tls_cert" .) ]] != ""}

          tls {
            cert = ${jsonencode([[ template "value" (var "gateway_tls_cert" .) ]])}
            key  = ${jsonencode([[ template "value" (var "gateway_tls_key" .) ]])}
          }
          %{~endif}
          %{~if [[ template "value" (var "gateway_engine_ca" .) ]] != ""}

          engine_tls {
            ca_cert = ${jsonencode([[ template "value" (var "gateway_engine_ca" .) ]])}
          }
          %{~endif}
          %{~if length([[ template "value" (var "controllers" .) ]]) > 0}

          controller {
            addresses = ${jsonencode([[ template "value" (var "controllers" .) ]])}
            ca_cert   = ${jsonencode([[ template "value" (var "ca_cert" .) ]])}
            {{ if nomadVarExists "nomad/jobs/gateway" }}{{ with nomadVar "nomad/jobs/gateway" }}token = {{ .token.Value | toJSON }}{{ end }}{{ end }}
          }
          %{~endif}
        EOT
      }

      # Longer than lame_duck and drain together. Nomad caps this at the client's
      # max_kill_timeout (30 s unless it is raised).
      kill_timeout = "30s"

      service {
        name     = "remuda-gateway"
        provider = "nomad"
        port     = "http"

        check {
          type            = "http"
          protocol        = [[ template "value" (var "gateway_tls_cert" .) ]] == "" ? "http" : "https"
          tls_skip_verify = true # the certificate is for the name that clients use
          path            = "/ready"
          interval        = "2s"
          timeout         = "2s"
        }
      }

      # limits.buffered (192 MiB by default) and what else requests hold must fit the memory. With
      # GOGC the collector runs a quarter as often below that limit, which saves CPU.
      env {
        GOMEMLIMIT = "448MiB"
        GOGC       = "400"
      }

      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }
}
[[ end ]]
