# Scales the model "demo" by its backlog as Replicate's scaler does (strategy remuda-hpa, form
# replicate), so that each replica has twelve requests, those that wait and those that run. In
# a minute the count at most doubles or grows by five, whichever is more, to the smallest count
# that was recommended for 30 seconds. Replicas are removed after they were unnecessary for
# two minutes.
#
# nomad-autoscaler reads this file from the directory in its agent's policy block. The agent
# needs the plugins "remuda" (apm and target) and "remuda-hpa": `remuda-autoscaler -h` shows the
# blocks. `remuda dev -policy replicate` runs this file.

scaling "demo" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    # Almost no pause after an action, because the windows already limit how fast the count changes.
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "replicate" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-hpa" {
        model = "demo"
        form  = "replicate"

        # "running" counts the requests that run as well as those that wait; "queue" only the latter.
        metric = "running"
        target = "12"

        # Requests that are added to the backlog, so that as many find a free slot at once.
        headroom = "0"

        # A backlog that is off by less than this share of the target changes nothing.
        hysteresis = "0.02"

        # The most replicas until the first one is ready.
        slow_start = "5"

        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
