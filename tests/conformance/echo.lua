-- Return the arguments as they came.

return ARGV
