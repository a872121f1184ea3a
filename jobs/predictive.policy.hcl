# Scales the model "demo" so that 99.9 percent of its requests find a free slot within two
# seconds (strategy remuda-predictive). The need follows from the decaying peak of the
# requests at work and from how demand turned out in the past by the time that a new replica
# served (cold_start, 110 s by default). Late requests make it more careful, days without any
# leaner.
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
