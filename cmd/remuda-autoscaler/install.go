package main

// install is what people see who run the plugin by hand.
const install = `remuda-autoscaler is a plugin of nomad-autoscaler, which starts it. It does not run as a program of its own.

To install it:
  1. Put this file into nomad-autoscaler's plugin_dir, under the name "remuda-autoscaler":
         install -D -m 0755 remuda-autoscaler /opt/nomad-autoscaler/plugins/remuda-autoscaler
  2. Add the plugins that you use to the agent's configuration, each with the name of the file as its driver:
         plugin_dir = "/opt/nomad-autoscaler/plugins"
         apm "remuda" {
           driver = "remuda-autoscaler"
           args   = ["apm"]
           config = { controller = "http://127.0.0.1:4750", consul = "127.0.0.1:8500" }
         }
         target "remuda" {
           driver = "remuda-autoscaler"
           args   = ["target"]
           config = { controller = "http://127.0.0.1:4750", policy_dir = "/etc/nomad-autoscaler.d/policies" }
         }
         policy {
           dir = "/etc/nomad-autoscaler.d/policies"
         }
         strategy "remuda-capacity" {
           driver = "remuda-autoscaler"
           args   = ["strategy", "remuda-capacity"]
           config = { controller = "http://127.0.0.1:4750", consul = "127.0.0.1:8500",
                      decisions = "/var/lib/nomad-autoscaler/capacity.json" }
         }
     The strategies are remuda-capacity, remuda-hpa, remuda-utilization and remuda-predictive.
  3. Write a policy into each model file: scaling { strategy = "remuda-capacity" }
     Or write a policy for nomad-autoscaler:
         scaling "llama" {
           enabled = true
           min = 0
           max = 8
           policy {
             cooldown = "1s"   # "0s" means the default of five minutes
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
                       the controller (default: REMUDA_ADDR and the other REMUDA_ variables); "none": no controller
  consul, consul_token the Consul agent that lists the engines; "none": do not use Consul
  prometheus, prometheus_token
                       a Prometheus server that has the engines' metrics, instead of Consul
                       (its series need a label replica with the replica's name, such as <model>:<variant>:<id>, or its ID)
  prometheus_user, prometheus_password, prometheus_ca_cert, prometheus_headers ("X-Scope-OrgID=tenant"),
  prometheus_model_label, prometheus_match ("namespace=prod"), prometheus_replica_labels, prometheus_series
  ("kv_usage=my:kv"), prometheus_window (1m), prometheus_stale_after (30s)
                       how to reach it, and the names on it
  scrape_interval      time between two reads of an engine's metrics (5s)
Key of a target's config block only:
  policy_dir           the directory of the policy block, into which the policies of model files are written
Keys of a strategy's config block only:
  decisions            file to which each decision is written with its inputs; 3 files of 64 MiB are kept
  state_dir            directory for the strategy's state. Without it the state is in memory, and after each
                       start nothing shrinks until one full window was observed
  metrics_listen       address of a Prometheus endpoint, such as "127.0.0.1:9836"
Keys of a check's strategy block (the config block may set their defaults):
  model, served_as, dialect, scale_to_zero (false), idle_after (5m),
  unplaceable_hold (2m: how long a variant that could not be placed is not used while another one can be)
  variant, cost, slots, match                for a plain job group, without a remuda controller
  remuda-capacity: rules (safe), kv_cache_threshold (0.8), queue_length_threshold (5), kv_spare_trigger (0.1),
      queue_spare_trigger (3), growth_percent (100: how many replicas of those that serve are added while they start; 0: one at a time), hold (2m: how long fewer replicas must be enough before one is removed), stale_after (1m)
  remuda-hpa: metric (queue, running, kv or waiting), value (peak or now), target, tolerance_up and tolerance_down (0.1), behavior (JSON);
      form (kubernetes, or replicate with headroom, hysteresis, slow_start, min_override, emergency_cap)
  remuda-utilization: max_concurrent_requests, min_utilization (0.3), max_utilization (0.8), usage_window (15m), cycle (5m),
      tier, config (JSON)
  remuda-predictive: goal (0.999: share of the requests that find a free slot within target_wait, 2s),
      cold_start (time from the start of a replica until it serves; without it as the controller has measured it, and
      110s until it has), payback (15m: how long a replica must be unused to be removed), config (JSON)

Commands:
  remuda-autoscaler replay FILE|-    make each decision in a decisions file again and print those that differ
  remuda-autoscaler input FILE|-     print the inputs of the capacity analyzer, for: remuda capacity explain -
  remuda-autoscaler -version         print the version
`
