# Scales the model "demo" by the share of its slots that are in use (strategy
# remuda-utilization). The count does not change between 30 and 80 percent. Replicas that
# were needed at this time last week are started in advance.
#
# nomad-autoscaler reads this file from the directory in its agent's policy block. The agent
# needs the plugins "remuda" (apm and target) and "remuda-utilization": `remuda-autoscaler -h` shows
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

        # Utilization is averaged over this time. A shorter window reacts faster and scales
        # more often.
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
