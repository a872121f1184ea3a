package main

// install is what people see who run the plugin by hand.
const install = `remuda-device is a device plugin of Nomad, which starts it. It does not run as a program of its own.

To install it:
  1. Put this file into the plugin_dir of every Nomad client that has GPUs, under
     the name "remuda-device" (Nomad finds its configuration by the file name):
         install -D -m 0755 remuda-device /opt/nomad/plugins/remuda-device
  2. Add the directory and the plugin to the agent's configuration:
         plugin_dir = "/opt/nomad/plugins"
         plugin "remuda-device" {
           config {
             seats = 8
           }
         }
  3. Restart the Nomad agent and check:
         nomad node status -self -verbose
     If the GPUs are missing: remuda device doctor

Keys of the config block, with their defaults:
  seats              = 8                  seats of each GPU
  fingerprint_period = "5s"               time between two reads of the GPUs; XIDs are reported at once
  ignored_gpu_ids    = []                 UUIDs of GPUs and MIG instances that are not offered
  ignored_xids       = []                 XIDs that do not make a GPU unhealthy
  health_dir         = "/run/remuda-device"  what is against a GPU, kept over a restart; remove a GPU's
                                          file to declare it healthy; "" keeps nothing
  gms_socket_dir     = "/run/remuda"  set in tasks as GMS_SOCKET_DIR and mounted into containers; "" for none
  containers         = "runtime"          NVIDIA's container runtime; "cdi": the same with CDI names;
                                          "nodes": device files, without that runtime
  nvml_library       = ""                 path of libnvidia-ml.so.1, if the linker does not find it
  metrics            = ""                 address of a Prometheus endpoint, such as "127.0.0.1:9835"
  gpu { id = "GPU-…" }                    for one GPU or MIG instance: seats, nvlink_clique
  simulate { model = "H100" }             simulated GPUs instead of the node's own: memory, count, seats,
                                          nvlink_clique_size, compute_capability, architecture,
                                          driver_version, cuda_version, power_limit_watts
  seed, state_file, sim_dir               of simulated GPUs: vary their UUIDs, make them sick, count
                                          their memory (default "/run/remuda-sim")

Flags:
  -version                         print the version and exit
  -probe [-nvml-library PATH]      print what NVML reports for this node as JSON and exit
`
