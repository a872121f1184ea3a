# lockd removes the registrations of dead engines, and shows its locks in keys.

service "remuda-engine" {
  policy = "write"
}

session_prefix "" {
  policy = "write"
}

key_prefix "remuda/locks/" {
  policy = "write"
}
