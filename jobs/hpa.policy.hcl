# Scales the model "demo" as a HorizontalPodAutoscaler of Kubernetes would (strategy
# remuda-hpa): so many replicas that each has twelve requests at work, of the sixteen that
# it has slots for. Growth is at most fourfold or by four in 15 s; what is too much goes
# once it was too much for five minutes.
#
# nomad-autoscaler reads it from the directory of its policy block. Its agent needs the
# plugins "remuda" (apm and target) and "remuda-hpa": `remuda-autoscaler -h` shows the
# blocks. `remuda dev -policy hpa` runs this file.

scaling "demo" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    # Hardly a pause after an action: the windows of "behavior" see to that.
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "hpa" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-hpa" {
        model  = "demo"
        metric = "running"
        target = "12"

        # behavior as in Kubernetes, as JSON. These are its defaults.
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
