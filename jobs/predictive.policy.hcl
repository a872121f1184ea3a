# Scales the model "demo" so that 99.9 percent of its requests find a free slot within two
# seconds (strategy remuda-predictive). The need follows from the arrivals of the last
# minute, the peak of the last hour, and the load at this time yesterday and last week, for
# the time that a replica takes to start (cold_start, 110 s by default). The strategy
# simulates how late requests would have been with more and with less headroom, and uses
# the least headroom that meets the goal.
#
# nomad-autoscaler reads this file from the directory in its agent's policy block. The agent
# needs the plugins "remuda" (apm and target) and "remuda-predictive": `remuda-autoscaler -h` shows
# the blocks. `remuda dev -policy predictive` runs this file.

scaling "demo" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "predictive" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-predictive" {
        model       = "demo"
        goal        = "0.999"
        target_wait = "2s"

        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
