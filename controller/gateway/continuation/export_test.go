package continuation

// SetLimit says how many bytes of text are kept at most. It must be called before Feed.
func (r *Recorder) SetLimit(bytes int) { r.limit = bytes }
