# Scales the model "demo" by saturation (strategy remuda-capacity): a replica is added on
# the cheapest variant that has a place as soon as those that serve are nearly full, by
# their KV memory, their slots or what waits for them; one goes where the rest would not be
# nearly full without it.
#
# nomad-autoscaler reads it from the directory of its policy block. Its agent needs the
# plugins "remuda" (apm and target) and "remuda-capacity": `remuda-autoscaler -h` shows the
# blocks. `remuda dev` runs this file.

scaling "demo" {
  enabled = true

  # They go on top of the model's own, which its model file says.
  min = 0
  max = 16

  policy {
    # Hardly a pause after an action (0s would be the default of five minutes): the strategy counts what is on its way.
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "capacity" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-capacity" {
        model = "demo"

        # A full replica: more of its KV memory or of its slots is in use, or more
        # requests wait for it. Growth begins where less than the triggers is left, on
        # average.
        kv_cache_threshold     = "0.80"
        queue_length_threshold = "5"
        kv_spare_trigger       = "0.10"
        queue_spare_trigger    = "3"

        # One goes once fewer were enough for so long.
        hold = "2m"

        # The last replica goes after five minutes without a request. The first request
        # brings one back.
        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
