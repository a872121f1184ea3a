package gms

// Nonce names this server's incarnation.
func (s *Server) Nonce() string { return s.nonce }
