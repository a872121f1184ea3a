# Scales the model "demo" by saturation (strategy remuda-capacity). A replica of the cheapest
# variant that can be placed is added as soon as the serving replicas are nearly full by KV
# memory, slots or queue. A replica is removed if the others would not be nearly full
# without it.
#
# nomad-autoscaler reads this file from the directory in its agent's policy block. The agent
# needs the plugins "remuda" (apm and target) and "remuda-capacity": `remuda-autoscaler -h` shows the
# blocks. `remuda dev` runs this file.

scaling "demo" {
  enabled = true

  # The min and max in the model file apply as well.
  min = 0
  max = 16

  policy {
    # Almost no pause after an action ("0s" means the default of five minutes), because the
    # strategy counts the replicas that are starting.
    cooldown            = "1s"
    evaluation_interval = "10s"

    check "capacity" {
      source = "remuda"
      query  = "replicas/demo"

      strategy "remuda-capacity" {
        model = "demo"

        # A replica is full when it uses more of its KV memory or slots than this threshold,
        # or has more waiting requests. Scale-up begins when the average spare capacity is
        # less than a trigger.
        kv_cache_threshold     = "0.80"
        queue_length_threshold = "5"
        kv_spare_trigger       = "0.10"
        queue_spare_trigger    = "3"

        # A replica is removed after fewer replicas were enough for this time.
        hold = "2m"

        # The last replica is removed after five minutes without a request. The next request
        # starts one.
        scale_to_zero = "true"
        idle_after    = "5m"
      }
    }

    target "remuda" {
      model = "demo"
    }
  }
}
