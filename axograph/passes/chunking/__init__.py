"""The pass `chunk`: the local batch in chunks, so that one computes while another's results are on their way."""
