package main

// install is what people see who run the plugin by hand.
const install = `remuda-autoscaler is a nomad-autoscaler plugin: nomad-autoscaler starts it, it cannot be run by hand.

To install it:
  1. Put this file into nomad-autoscaler's plugin_dir, under the name "remuda-autoscaler":
         install -D -m 0755 remuda-autoscaler /opt/nomad-autoscaler/plugins/remuda-autoscaler
  2. Name what you use in the agent's configuration, each with the name of the file as its driver:
         plugin_dir = "/opt/nomad-autoscaler/plugins"
         apm "remuda" {
           driver = "remuda-autoscaler"
           args   = ["apm"]
           config = { controller = "http://127.0.0.1:4750", consul = "127.0.0.1:8500" }
         }
         target "remuda" {
           driver = "remuda-autoscaler"
           args   = ["target"]
           config = { controller = "http://127.0.0.1:4750" }
         }
         strategy "remuda-capacity" {
           driver = "remuda-autoscaler"
           args   = ["strategy", "remuda-capacity"]
           config = { controller = "http://127.0.0.1:4750", consul = "127.0.0.1:8500",
                      decisions = "/var/lib/nomad-autoscaler/capacity.json" }
         }
     The strategies are remuda-capacity, remuda-hpa, remuda-utilization and remuda-predictive.
  3. Write a policy for each model:
         scaling "llama" {
           enabled = true
           min = 0
           max = 8
           policy {
             cooldown = "1s"   # "0s" would be the default of five minutes
             check "capacity" {
               source = "remuda"
               query  = "replicas/llama-3-8b"
               strategy "remuda-capacity" { model = "llama-3-8b" }
             }
             target "remuda" { model = "llama-3-8b" }
           }
         }

Keys of the config block:
  controller, token, ca_cert, client_cert, client_key
                       the controller; REMUDA_ADDR and friends without them; controller = "none": there is none
  consul, consul_token the Consul agent, through which engines are found; "none": not through Consul
  prometheus, prometheus_token
                       a Prometheus server that has the engines' metrics, in place of Consul
                       (its series need a label replica with the replica's name, as <model>:<variant>:<id>, or its ID)
  scrape_interval      between two looks at an engine (5s)
Keys of a strategy's block alone:
  decisions            a file that every decision is written to with its inputs; kept: 3 of 64 MiB
  state_dir            a directory for the state of the strategy, where there is no controller
  metrics_listen       address of a Prometheus endpoint, as "127.0.0.1:9836"
Keys of a check's strategy block, for which the config block may give defaults:
  model, namespace, served_as, dialect, scale_to_zero (false), idle_after (5m),
  unplaceable_hold (2m: a variant that had no place is not chosen for so long, where another one has)
  variant, cost, slots, match                of a plain job group, without our controller
  remuda-capacity: rules (safe), kv_cache_threshold (0.8), queue_length_threshold (5), kv_spare_trigger (0.1),
      queue_spare_trigger (3), hold (2m: for how long fewer must have been enough), stale_after (1m),
      overrides (JSON), optimizer (false), target_wait (2s), target_probability (0.999)
  remuda-hpa: metric (queue, running, kv or waiting), target, tolerance_up and tolerance_down (0.1), behavior (JSON);
      form (kubernetes, or replicate with headroom, hysteresis, slow_start, min_override, emergency_cap)
  remuda-utilization: max_concurrent_requests, min_utilization (0.3), max_utilization (0.8), usage_window (15m),
      tier, config (JSON)
  remuda-predictive: goal (0.999: the share of requests that finds a free slot within target_wait, 2s),
      cold_start (110s: from the start of a replica until it serves), lower (0.1: the share that must be too
      much before anything is removed), hold (15m: for how long the highest need is kept), config (JSON)

By hand it can be told to
  remuda-autoscaler replay FILE|-    decide everything in a decisions file again, and tell what differs
  remuda-autoscaler input FILE|-     print the inputs of the capacity analyzer, for: remuda capacity explain -
  remuda-autoscaler -version         print the version
`
