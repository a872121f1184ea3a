[[- /* Generated from jobs/node.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "node" (var "jobs" .) ]]
job "remuda-node" {
  type = "system"

  # Engines depend on it: it comes first where a node is full.
  priority = 80

  # The controller places replicas only where all tasks of this job run.
  meta {
    remuda_node_job = "true"
  }

  group "lockd" {
    network {
      port "metrics" {}
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "100ms"
      mode     = "delay"
    }

    task "lockd" {
      driver = "raw_exec"

      config {
        command = [[ template "value" (var "remuda" .) ]]
        args = [
          "lockd",
          "-socket", "${[[ template "value" (var "node_socket_dir" .) ]]}/lockd.sock",
          "-state", [[ template "value" (var "node_state_dir" .) ]],
          "-consul", [[ template "value" (var "consul" .) ]],
          "-metrics", "${NOMAD_ADDR_metrics}",
        ]
      }

      # A lockd that hangs does not answer for its metrics, and is restarted.
      service {
        name     = "remuda-lockd"
        provider = "nomad"
        port     = "metrics"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"

          check_restart {
            limit = 2
            grace = "10s"
          }
        }
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }

  group "gms" {
    network {
      port "metrics" {}
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "100ms"
      mode     = "delay"
    }

    task "gms" {
      driver = "raw_exec"

      config {
        command = [[ template "value" (var "remuda" .) ]]
        args = concat([
          "gms",
          "-socket-dir", [[ template "value" (var "node_socket_dir" .) ]],
          "-metrics", "${NOMAD_ADDR_metrics}",
        ], [[ template "value" (var "node_memory" .) ]])
      }

      # The keeper itself replaces a service that hangs.
      service {
        name     = "remuda-gms"
        provider = "nomad"
        port     = "metrics"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"
        }
      }

      resources {
        cpu    = 250
        memory = 320
      }
    }
  }
}
[[ end ]]
