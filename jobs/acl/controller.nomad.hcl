# What the controller does at Nomad: it runs the replicas' jobs, and reads nodes and allocations.

namespace "default" {
  capabilities = ["submit-job", "read-job", "list-jobs"]
}

node {
  policy = "read"
}

# Every volume that the models' jobs mount.
host_volume "models" {
  policy = "read"
}
