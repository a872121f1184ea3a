# Scales the model "demo" so that 99.9 percent of its requests find a free slot within two
# seconds (strategy remuda-predictive): from the rate of arrivals and its trend, how long a
# replica takes to start, the peaks of the last hour, and this time yesterday and last week.
# It plays along how late requests would have been with less, and so finds by itself how
# much room the model needs.
#
# nomad-autoscaler reads it from the directory of its policy block. Its agent needs the
# plugins "remuda" (apm and target) and "remuda-predictive": `remuda-autoscaler -h` shows
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
