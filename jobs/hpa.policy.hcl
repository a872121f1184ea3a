# Scales the model "demo" as a HorizontalPodAutoscaler of Kubernetes does (strategy
# remuda-hpa), so that each replica runs twelve requests in its sixteen slots. In 15 seconds
# the count at most doubles or grows by four, whichever is more. Replicas are removed after
# they were unnecessary for five minutes.
#
# nomad-autoscaler reads this file from the directory in its agent's policy block. The agent
# needs the plugins "remuda" (apm and target) and "remuda-hpa": `remuda-autoscaler -h` shows the
# blocks. `remuda dev -policy hpa` runs this file.

scaling "demo" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    # Almost no pause after an action, because the windows in "behavior" already limit how fast the count changes.
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "hpa" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-hpa" {
        model  = "demo"
        metric = "running"
        target = "12"

        # The behavior of a HorizontalPodAutoscaler, as JSON, with the defaults of Kubernetes.
        behavior = <<-EOT
          {
            "scale_up": {
              "stabilization_window_seconds": 0,
              "select_policy": "Max",
              "policies": [
                {"type": "Percent", "value": 100, "period_seconds": 15},
                {"type": "Pods", "value": 4, "period_seconds": 15}
              ]
            },
            "scale_down": {
              "stabilization_window_seconds": 300,
              "select_policy": "Max",
              "policies": [
                {"type": "Percent", "value": 100, "period_seconds": 15}
              ]
            }
          }
        EOT

        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
