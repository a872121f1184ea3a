# Scales the model "demo" by the share of its slots that are in use (strategy
# remuda-utilization): between 30 and 80 percent nothing changes. What this time last week
# needed is there before it is asked for.
#
# nomad-autoscaler reads it from the directory of its policy block. Its agent needs the
# plugins "remuda" (apm and target) and "remuda-utilization": `remuda-autoscaler -h` shows
# the blocks. `remuda dev -policy utilization` runs this file.

scaling "demo" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "utilization" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-utilization" {
        model           = "demo"
        min_utilization = "0.30"
        max_utilization = "0.80"

        # Use is averaged over this time: shorter is quicker and less calm.
        usage_window = "2m"

        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
